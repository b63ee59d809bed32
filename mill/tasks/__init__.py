"""Tasks, one benchmark a file, and the shapes they share. Imports `mill.api` only; data loads when a task is used."""

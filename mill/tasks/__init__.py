"""Tasks, one benchmark a file, and the shapes they share. Imports `mill.api` and `mill.support`;
data loads when a task is used."""

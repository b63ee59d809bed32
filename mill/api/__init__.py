"""The public contract: requests, models, tasks and the registry. Imports `mill.support` only."""

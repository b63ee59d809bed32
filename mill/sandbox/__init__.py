"""Programs that a model wrote, run apart from this machine: tasks and bridges import it, and it imports `api` alone."""

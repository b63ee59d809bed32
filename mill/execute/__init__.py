"""The only place that calls a model: plans, runs and hands out answers. Imports `mill.api`, models and tasks."""

"""The executor: the only caller of models. Imports `mill.api`, models and tasks."""

"""The executor: the only caller of models. Imports `mill.api`, `mill.support`, models and tasks."""

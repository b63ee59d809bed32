"""Runs: one model on tasks with settings, recorded so that nothing is lost. Imports execute, metrics, models, tasks, api."""

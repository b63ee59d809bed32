"""The files of a run: folder, sessions, record of responses, one row a sample. Imports execute, metrics, models, tasks."""

"""Tables, files and pages of runs and checks. Imports checks, runs and metrics; never calls a model."""

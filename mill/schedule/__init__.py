"""Many runs on a cluster: the matrix of models, tasks and shots, what of it is missing, and its jobs. Imported by `cli`."""

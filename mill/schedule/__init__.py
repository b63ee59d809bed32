"""Many runs on a cluster: the matrix of models, tasks and shots, what is missing, and the jobs. Imported by `cli`."""

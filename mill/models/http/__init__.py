"""The HTTP core of all server backends: bounded adaptive concurrency, retries, timings, classified errors."""

"""The HTTP core of all server backends: bounded adaptive concurrency, retries, timings, classified errors."""

from mill.models.http.client import Client, Reply, counted_calls
from mill.models.http.failures import Failure

__all__ = ["Client", "Failure", "Reply", "counted_calls"]

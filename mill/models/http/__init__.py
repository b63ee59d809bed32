"""The HTTP core of all server backends: bounded adaptive concurrency, retries, timings, classified errors."""

from mill.models.http.client import Client, Reply
from mill.models.http.failures import Failure
from mill.models.http.policy import counted_calls

__all__ = ["Client", "Failure", "Reply", "counted_calls"]

"""Token ids: encoding, pairs of context and continuation, stop strings, rolling windows. For all backends that see
tokens."""

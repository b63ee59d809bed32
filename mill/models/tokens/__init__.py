"""Token ids: encoding, context and continuation pairs, stop strings, windows. Shared by all backends that see tokens."""

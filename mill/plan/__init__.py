"""Which samples of which tasks run, and what is refused before. Imports store."""

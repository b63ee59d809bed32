"""What a user types for a model, parsed into a backend and its arguments, and opened."""

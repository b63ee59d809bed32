"""The public contract: requests, models, tasks and the registry. Imports nothing else of mill; everything may import it."""

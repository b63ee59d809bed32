"""Tasks of lmms-eval as tasks of mill, with its own prompts, scoring and aggregation, and mill as one of its models."""

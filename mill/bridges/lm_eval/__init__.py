"""Tasks of lm-evaluation-harness as tasks of mill, with its own prompts, filters, metrics and aggregation."""

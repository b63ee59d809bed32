"""Tasks of lm-evaluation-harness as tasks of mill: its prompts, filters, metrics and aggregation, called and never rewritten."""

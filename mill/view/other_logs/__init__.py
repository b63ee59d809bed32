"""Results of other tools (lm-eval, inspect_ai) as runs of mill: `find` lists them, `convert` writes them as runs."""

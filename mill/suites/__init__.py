"""Prompt suites that come with mill: a file of JSON lines each, and `long_context`, which makes its prompts."""

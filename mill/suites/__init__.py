"""Prompt suites that come with mill: a file of JSON lines each, and `long_context`, which makes its prompts (with `chance`,
`planted_facts`, `documents` and `words`)."""

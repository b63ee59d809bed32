"""Every option of a run, defined once: its type, range, default and help text.

The command line, run files (YAML) and Python (`mill.evaluate`, `mill.compare`) all read these definitions. Imports `api`,
`models` and `checks`; never click.
"""

"""The command line, one file per command. A command is imported when it is called, so that `mill --help` is instant."""

"""The command line, one command a file. Commands are imported when they are called, so that `mill --help` is instant."""

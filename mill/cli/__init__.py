"""The command line: commands, each beside its options. One is imported when it is called, so `mill --help` is instant."""

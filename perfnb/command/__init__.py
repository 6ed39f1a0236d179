"""The command line: each sub-command parses its words, calls what the public functions call, and shows the result."""

"""The command line: each sub-command parses its arguments, calls the public functions' code, and shows the result."""

"""Provide the command line. Each sub-command parses its arguments, calls perfnb's functions and displays the result."""

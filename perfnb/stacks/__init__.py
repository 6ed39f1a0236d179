"""Stacks of calls: read the profiles of other tools from files, and compute the time of each function."""

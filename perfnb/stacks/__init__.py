"""Stacks of calls: the profiles of other tools in files, and what each function took."""

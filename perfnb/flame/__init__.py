"""Stacks of calls: host profiles that other tools wrote, the Python code of a step, and flame graphs of both."""

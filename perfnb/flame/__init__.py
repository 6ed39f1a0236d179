"""Show host profiles from other tools, the Python code of a step, and flame graphs of both."""

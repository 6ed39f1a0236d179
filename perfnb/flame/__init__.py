"""Show host profiles of other tools, the Python code of a step, and flame graphs of both."""

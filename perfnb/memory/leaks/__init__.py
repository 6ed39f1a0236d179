"""Memory that grows from step to step, and who leaks it."""

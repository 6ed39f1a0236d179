"""Memory that grows from step to step, and what leaks it."""

"""Find memory that grows from step to step, and what causes the leak."""

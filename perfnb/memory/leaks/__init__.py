"""Find memory that grows from step to step, and the cause of the leak."""

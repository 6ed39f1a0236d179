"""Gates on the work of a step: `counts` counts it, and `records` keeps the files next to tests."""

"""Memory of a step: what is alive when, and what for."""

"""Show how close each layer comes to the machine's peak arithmetic and bandwidth."""

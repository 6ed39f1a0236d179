"""Show how close each layer comes to the peak arithmetic and bandwidth of the machine."""

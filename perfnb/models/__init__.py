"""Compare several models or sizes: `compare_architectures` and `scaling_study`."""

"""Read snapshots of the CUDA allocator, which any program can dump."""

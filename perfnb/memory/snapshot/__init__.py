"""Read snapshots of the CUDA allocator, as any program dumps them."""

"""Snapshots of the CUDA allocator, as any program dumps them."""

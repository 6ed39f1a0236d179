"""Read snapshots of the CUDA allocator that any program dumped."""

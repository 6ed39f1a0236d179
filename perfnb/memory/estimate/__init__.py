"""Estimates of a step's memory, from a simulated allocator and fake tensors."""

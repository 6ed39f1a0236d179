"""Estimate a step's memory with a simulated allocator and fake tensors."""

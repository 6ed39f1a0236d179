"""Describe where memory goes: allocations, peaks, leaks, estimates and snapshots.

The room is large because it answers four questions with different data. `allocations`, `table` and `tab` describe the
step that a profile watched; `from_trace` reads the memory in a loaded trace. `estimate/` simulates a step that never
ran, `leaks/` judges many steps, and `snapshot/` reads a file of CUDA's allocator with a pickle reader of its own, which
bounds memory. `pictures` draws memory over time and an allocator's segments, for the step and for snapshots, and `fits`
lists changes that would need less memory, for the step and for estimates.
"""

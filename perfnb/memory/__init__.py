"""Describe where memory goes: allocations, peaks, leaks, estimates and snapshots.

The room is large because it answers four questions with different data. `allocations`, `table` and `tab` describe the
step that a profile watched, and `from_trace` reads the memory in a loaded trace. `estimate/` simulates a step that
never ran, `leaks/` judges many steps, and `snapshot/` reads a file from CUDA's allocator with its own pickle reader,
which limits memory. `pictures` draws memory over time and an allocator's segments, both for steps and for snapshots.
`fits` lists changes that would need less memory, both for steps and for estimates.
"""

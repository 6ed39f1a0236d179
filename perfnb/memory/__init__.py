"""Describe where memory goes: allocations, peaks, leaks, estimates and snapshots.

This package is large because it answers four questions that require different data. `allocations`, `table` and `tab`
describe the step whose memory was recorded in a profile, and `from_trace` reads the memory in a loaded trace.
`estimate/` simulates a step that has not been run, and `leaks/` examines many steps. `snapshot/` reads a file written
by the CUDA allocator, using its own pickle reader with a memory limit. `pictures` draws memory over time and the
segments of an allocator, for both steps and snapshots. `fits` lists changes that would reduce memory usage, for both
steps and estimates.
"""

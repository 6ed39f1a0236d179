"""Where memory goes: allocations, peaks, leaks, estimates and snapshots."""

"""`system_check`: is this machine set up to compute fast, and to give steady timings?

The room is large because each of the 21 checks has its words (what is expected, why, and what to do), and because each
reads files of Linux or answers of NVML that can be missing or wrong in their own way.
"""

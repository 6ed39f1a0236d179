"""`system_check`: find out whether this machine is set up to compute fast and to produce steady timings.

This package is large because each of the 21 checks has its own texts (the expectation, the reason, and the
recommendation), and because each check reads Linux files or NVML results that can be missing or wrong in different
ways.
"""

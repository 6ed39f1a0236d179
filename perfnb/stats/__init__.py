"""Statistics on plain numbers: intervals, paired comparisons, fits.

These are pure functions that know nothing of traces.
"""

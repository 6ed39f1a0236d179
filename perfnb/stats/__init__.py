"""Statistics on plain numbers: intervals, paired comparisons and fits.

These are pure functions that do not depend on traces.
"""

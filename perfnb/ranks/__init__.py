"""Show several ranks of one job side by side.

This package is large because the ranks' clocks must be aligned and their collectives matched before anything can be
compared, and because it also draws the ranks in lanes.
"""

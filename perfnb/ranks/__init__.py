"""Show several ranks of one job side by side.

The room is large because it must align the ranks' clocks and match their collectives before it can compare anything,
and because it draws the ranks in lanes.
"""

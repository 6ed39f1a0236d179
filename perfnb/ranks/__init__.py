"""Show several ranks of one job side by side.

The room is large because it must align the clocks of the ranks and match their collectives before anything can be
compared, and because it draws the ranks in lanes.
"""

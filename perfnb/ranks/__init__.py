"""Several ranks of one job, side by side.

The room is large because it puts the clocks of ranks on one scale and matches their collectives before anything can be
compared, and draws them in lanes.
"""

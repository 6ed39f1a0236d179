"""Timing without instrumentation: `time_step`, `confirm_input_bound`, and the code that experiments share.

The room runs steps in pairs, rounds or blocks, plans how many are needed, compares and restores what steps return and
change, and decides on the result.

The room is large because comparing steps fairly takes many parts, which other rooms share: the plan of pairs, rounds or
blocks, rounds on a device's clock, blocks where a loader prefetches, the restoration of everything that steps change, a
stand-in for models, and the comparison of results.
"""

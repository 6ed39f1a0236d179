"""Timing without instrumentation: `time_step`, `confirm_input_bound`, and the parts that experiments share.

Steps in pairs, rounds or blocks, how many of them, what they return and leave behind, and what to decide.

The room is large because comparing steps fairly takes many parts, which other rooms share: the plan of pairs, rounds or
blocks, rounds on a device's clock, blocks where a loader prefetches, the restoration of everything that steps change, a
stand-in for models, and the comparison of results.
"""

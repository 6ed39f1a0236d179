"""Timing without instrumentation: `time_step`, `confirm_input_bound`, and what experiments share.

Steps in pairs, rounds or blocks, how many of them, what they return and leave behind, and what to decide.
"""

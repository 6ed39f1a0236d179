"""Timing without instrumentation: `time_step`, `confirm_input_bound`, and the code that experiments share.

The package runs steps in pairs, rounds or blocks, and plans how many of them are needed. It compares the steps' return
values, restores everything that the steps change, and decides on the result.

The package is large because a fair comparison of steps has many parts, and other packages use them as well: planning
pairs, rounds or blocks; timing rounds on a device's clock; running blocks if a loader prefetches; restoring everything
that steps change; replacing models with a stand-in; and comparing results.
"""

"""Experiments on a step: `ab_test`, and the `journal` that stores the results of trials.

The room is large because a decision is based on times, results, losses and limits, each of which is described in its
own words. In addition, tests and journal entries are saved, validated when they are read, and compared with previously
accepted ones.
"""

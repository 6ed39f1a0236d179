"""Run experiments on a step with `ab_test`, and store the results of trials in the `journal`.

The package is large because a decision is based on times, results, losses and limits, each of which must be described
separately. In addition, tests and journal entries are saved, validated when they are read, and compared with previously
accepted ones.
"""

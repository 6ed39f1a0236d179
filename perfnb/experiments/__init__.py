"""Experiments on a step: `ab_test`, and the `journal` that keeps the results of trials.

The room is large because a decision rests on times, results, losses and limits, each with its own words, and because
tests and entries are saved, checked when they are read, and compared with those accepted before.
"""

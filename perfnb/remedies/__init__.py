"""`try_levers`: switch remedies on and off for a step, measure them, check their values, and undo them.

Read the modules in this order: `subject` (the step and its parts), `budget` (the time limit), `loop` (prepares, times
and confirms levers), `measuring`, `values` and `verdicts`; `try_levers` binds them. In a running loop, where each step
runs only once, `loop_trial` switches levers between `blocks` of the loop's own steps.

This package is large because each kind of lever has its own module in `levers/`, with its conditions, its changes, and
the lines of code that make it permanent.
"""

"""`try_levers`: switch remedies on and off on a step, measure them, check their values, and undo them.

Read `subject` (the step and its parts), `budget` (what may be spent), `loop` (prepares, times and confirms),
`measuring`, `values` and `verdicts` in this order; `try_levers` binds them. In a running loop, whose steps are executed
once, `loop_trial` switches levers between `blocks` of its own steps.

The room is large because each kind of lever has a module in `levers/`, with its conditions, its changes, and the lines
that keep it.
"""

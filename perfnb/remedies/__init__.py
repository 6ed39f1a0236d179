"""`try_levers`: remedies switched on and off on a step, measured, checked for values, and put back.

Read `subject` (the step and its parts), `budget` (what may be spent), `loop` (prepares, times and confirms),
`measuring`, `values` and `verdicts` in this order; `try_levers` binds them. In a running loop, whose steps are executed
once, `loop_trial` switches levers between `blocks` of its own steps.

The room is large because each lever is a module of its own in `levers/`: when it applies, what it changes, and the
lines that keep it.
"""

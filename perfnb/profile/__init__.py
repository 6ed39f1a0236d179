"""`Profile` and its report: binds the results of the rooms above for one recording.

The room is large because it has the report's shell, the tabs of layers and ops, the notes, `load`, and the *Try it*
button besides `Profile` itself. `analysis` computes each table once, and `registry` lists everything bound by name.
"""

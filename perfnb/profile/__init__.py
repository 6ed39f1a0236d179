"""`Profile` and its report: binds what the rooms above say of one recording.

The room is large because it has the report's shell, the tabs of layers and ops, the notes, `load`, and the *Try it*
button besides `Profile` itself. `analysis` computes each table once, and `registry` lists what is bound by name.
"""

"""Provide `Profile` and its report, which combine the results of the higher-level packages for one recording.

Besides `Profile` itself, this package contains the frame of the report, the tabs for layers and ops, the notes, `load`,
and the *Try it* button. `analysis` computes each table once, and `registry` lists everything that is looked up by name.
"""

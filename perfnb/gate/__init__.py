"""Provide a pytest plugin that counts a step's work and compares it with a record and with another revision.

`plugin` contains the hooks and options, and `gating` contains the fixture. `counts` counts the work, and `records`
manages the files next to the tests. `revisions` runs the same step from two revisions in turn, each in a process of its
own that runs the script `child`.
"""

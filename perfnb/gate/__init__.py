"""The pytest plugin, which counts a step's work and compares it with a record and with another revision.

`plugin` contains the hooks and options, and `gating` the fixture. `counts` counts the work, `records` manages the files
next to the tests, and `revisions` lets the same step of two revisions take turns, each in a process that runs the
script `child`.
"""

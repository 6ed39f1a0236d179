"""The pytest plugin, which counts the work of a step and compares it with a record and with another revision.

`plugin` has the hooks and options, `gating` the fixture. `counts` counts, `records` keeps the files next to tests, and
`revisions` runs a step of two revisions in turns, each in a process that runs the script `child`.
"""

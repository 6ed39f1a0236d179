"""The pytest plugin: counts what a step does, and compares it with a record and with another revision.

`plugin` has the hooks and options, `gating` the fixture. `counts` counts, `records` keeps the files next to tests, and
`revisions` runs a step of two revisions in turns: in processes that `child` is the script of.
"""

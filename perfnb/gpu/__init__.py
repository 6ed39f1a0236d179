"""Describe the work and waits of GPUs: busy and idle time, launches, and the critical path.

The room is large because the critical path needs a model of dependencies (`dependencies`), a walk back through
it (`critical_path`), and a replay without each part (`path_savings`). `device_time` and `launches` need only the launch
of each piece of work. `tables` has the frames of a profile, and `summary` and `tab` the report.
"""

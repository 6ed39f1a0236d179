"""Describe the work and waits of GPUs: busy and idle time, launches, and the critical path.

The room is large because the critical path needs a model of dependencies (`dependencies`), a walk backwards through it
(`critical_path`), and a replay without each part (`path_savings`). `device_time` and `launches` only need the launch of
each piece of work. `tables` computes a profile's tables, and `summary` and `tab` create the report.
"""

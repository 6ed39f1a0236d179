"""Describe what GPUs did and waited for: busy and idle time, launches, and the critical path.

This package is large because the critical path needs a model of dependencies (`dependencies`), a backward traversal of
that model (`critical_path`), and a replay without each part (`path_savings`). `device_time` and `launches` only use the
launch of each piece of work. `tables` computes a profile's tables, and `summary` and `tab` create the report.
"""

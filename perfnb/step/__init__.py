"""Runs a live step in passes and records it. Measures with torch; knows no report.

The room is large because each pass has an instrument of its own: spans of layers (`layers`), the profiler (`tracer`),
allocations (`memory`), operators with their FLOPs (`arithmetic`), Python's stacks (`stack_sampler`, `worker_stacks`),
the clocks of devices, and the machine's ceilings. `session` has the passes, `pass_order` their order, `capture` their
results.
"""

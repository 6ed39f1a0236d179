"""Run a live step in passes and record it. This room measures with torch and knows nothing of reports.

The room is large because each pass has an instrument of its own: spans of layers (`layers`), the profiler (`tracer`),
allocations (`memory`), operators with their FLOPs (`arithmetic`), Python's stacks (`stack_sampler`, `worker_stacks`),
the clocks of devices, and the machine's ceilings. `session` contains the passes, `pass_order` their order, and
`capture` their results.
"""

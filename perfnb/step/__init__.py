"""Run a live step in passes and record it. This package measures with torch and does not depend on reports.

It is large because each pass uses a different instrument: layer spans (`layers`), the profiler (`tracer`), allocations
(`memory`), operators with their FLOPs (`arithmetic`), Python stacks (`stack_sampler`, `worker_stacks`), device clocks,
and the machine's ceilings. The passes are defined in `session`, their order in `pass_order`, and their results in
`capture`.
"""

"""Hardware telemetry: a separate process reads the sensors (`sampler`), and the kernel stores the readings.

The room is large because each source has its own reader: NVIDIA and AMD GPUs, cgroups, processes and the host.
"""

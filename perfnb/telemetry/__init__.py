"""Record hardware telemetry. A separate process (`sampler`) reads the sensors, and the kernel stores the readings.

This package is large because each source needs its own reader: NVIDIA and AMD GPUs, cgroups, processes and the host.
"""

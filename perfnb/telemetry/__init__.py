"""Hardware telemetry: a separate process reads the sensors (`sampler`), and the kernel keeps what it sends.

The room is large because each source has a reader of its own: NVIDIA's and AMD's GPUs, cgroups, processes and the host.
"""

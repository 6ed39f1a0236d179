"""Hardware telemetry: a process of its own reads the sensors (`sampler`), and the kernel keeps what it sends."""

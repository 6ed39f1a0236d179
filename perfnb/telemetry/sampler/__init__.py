"""The sampler's process: a loop that reads sensors, and one source for each kind of device.

No module in this folder may load torch, numpy or pandas. The kernel's side is one folder up.
"""

#: The module that the process runs. It is part of the command line, by which samplers recognise each other.
MODULE = "perfnb.telemetry.sampler.loop"

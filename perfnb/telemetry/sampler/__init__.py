"""The sampler's process: a loop that reads sensors, and one source for each kind of device.

Nothing in here may load torch, numpy or pandas. The kernel's side lies one folder up.
"""

#: The module that the process runs. It stands in the process's command line, by which samplers recognise each other.
MODULE = "perfnb.telemetry.sampler.loop"

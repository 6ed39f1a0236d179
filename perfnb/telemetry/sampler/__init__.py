"""Run the sampler's process, which reads the sensors in a loop. There is a source for each kind of device.

Modules in this package must not load torch, numpy or pandas. The parent package contains the code for the kernel.
"""

#: The module that the process runs. Samplers recognise each other by this name in the command line.
MODULE = "perfnb.telemetry.sampler.loop"

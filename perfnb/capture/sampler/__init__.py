"""The sampler: a process of its own that reads the machine's meters. Knows no torch, numpy or pandas: it is light."""

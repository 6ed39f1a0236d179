"""Read trace files in any format into columns of events. This package does not import torch.

The package is large because it reads seven formats that other programs write. There is a module for each format, and
all of them enforce limits while a file is being decoded.
"""

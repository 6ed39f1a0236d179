"""Read trace files of any format into columns of events. This room does not import torch.

The room is large because it reads seven formats of other programs, one module each, within limits that hold while a
file is decoded.
"""

"""Read trace files in any format into columns of events. This room does not import torch.

The room is large because it reads seven formats from other programs, with one module for each, within limits that are
enforced while a file is being decoded.
"""

"""File formats: a trace file in, columns of events out. Imports no torch.

The room is large because it reads seven formats of other programs, one module each, within limits that hold while a
file is decoded.
"""

"""The compiled code of a step: its kernels and the layers they compute, and its regions and their costs.

The layers inside regions are determined when a recording is made (`perfnb.recording.compiled_layers`), from the
compiled graphs that `perfnb.step.compiler` reads. `tables` computes a profile's tables, and `tab` creates its part of
the report.
"""

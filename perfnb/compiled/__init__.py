"""Analyse the compiled code in a step: its kernels and the layers that they compute, and its regions and their costs.

The layers inside regions are determined when a recording is created (see `perfnb.recording.compiled_layers`), based on
the compiled graphs that `perfnb.step.compiler` reads. `tables` computes the tables of a profile, and `tab` creates the
corresponding part of the report.
"""

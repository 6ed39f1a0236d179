"""The compiled code of a step: the kernels with the layers behind them, and the regions with their costs.

The layers inside regions are found when a recording is made (`perfnb.recording.compiled_layers`), from the compiled
graphs that `perfnb.step.compiler` reads. `tables` has the frames of a profile, and `tab` its part of the report.
"""

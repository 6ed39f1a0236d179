"""What torch.compile made of a step: the kernels with the layers behind them, and the regions with what they cost.

The layers inside regions are found when a recording is made (`perfnb.recording.compiled_layers`), from what
`perfnb.step.compiler` reads of compiled graphs. `tables` has the frames of a profile, `tab` its part of the report.
"""

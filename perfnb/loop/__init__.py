"""Profile some steps of a running loop, and describe the whole run.

Whoever drives the step, `perfnb.step.data_waits.Intake` counts its waits, batches and samples. `loop_steps` decides
where the steps of a loop end. `profiled`, the callbacks in `perfnb.integrations` and `script_steps` (for ``perfnb
run``) report to it what happens in their loop. It reports to `driver`, which lays the passes of a profile over some
steps and has `record` note all of them. `run` and the modules named after it read these notes.

This package is large because it has two purposes: it profiles loops that other code runs, and it describes whole runs,
alone, in pairs and by rank.
"""

"""Profiles of some steps of a running loop, and what the whole run shows.

Whoever drives the step, `perfnb.step.data_waits.Intake` counts its waits, batches and samples. `loop_steps` decides
where the steps of a loop end. `profiled`, the callbacks in `perfnb.integrations` and `script_steps` (for ``perfnb
run``) report to it what happens in their loop. It reports to `driver`, which lays the passes of a profile over some
steps and has `record` note all of them. `run` and the modules named after it read these notes.

The room is large because it does two things: it profiles loops that it does not own, and it describes whole runs,
alone, in pairs and by rank.
"""

"""Profiles of some steps of a running loop, and what the whole run shows.

What a step takes (waits, batches, samples) is counted by `perfnb.step.data_waits.Intake`, whoever drives the step.
Where the steps of a loop end is decided in `loop_steps`. `profiled`, the callbacks in `perfnb.integrations` and
`script_steps` (for ``perfnb run``) tell it what happens in their loop. It tells `driver`, which lays the passes of a
profile over some steps and has all of them noted by `record`. `run` and the modules named after it read what was noted.

The room is large because it does two things: it profiles loops that it does not own, and it describes whole runs,
alone, in pairs and by rank.
"""

"""Show what ran when, as intervals on tracks, and export it as a Chrome trace.

The room is large because one timeline has three readers: the browser (`data`), the static picture of a step
(`median_step`, `tab`) and other programs (`trace_export`). `build` makes the timeline from a recording, `timeline`
merges events that are too short to see, and `memory` places the memory curve of the counted step.
"""

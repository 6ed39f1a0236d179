"""Show what ran when, as intervals on tracks; export it as a Chrome trace.

The room is large because one timeline has three readers: the browser (`data`), the static picture of one step
(`median_step`, `tab`) and other programs (`trace_export`). `build` makes it from a recording, `timeline` merges events
that are too short to see, and `memory` places the memory curve of the counted step.
"""

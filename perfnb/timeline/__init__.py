"""Display a recording's events over time, as intervals on tracks, and export them as a Chrome trace.

This package is large because a timeline is used in three ways: in the browser (`data`), for the static picture of a
step (`median_step`, `tab`), and in other programs (`trace_export`). `build` creates the timeline from a recording,
`timeline` merges events that are too short to see, and `memory` maps the counted step's memory curve onto the timeline.
"""

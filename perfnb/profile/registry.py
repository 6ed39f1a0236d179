"""What the profile binds by name: the tabs of the report, what `load` opens, and what *Try it* calls.

This is the only list that leads from a room to those above it. Each entry is a module and an object in it.
The room is imported when the entry is first needed, so that no room below has to know it.
"""

from __future__ import annotations

#: The tabs in the order of the report. A new tab is an object in its room and a line here.
TABS = (
    "perfnb.profile.tab:LAYERS",
    "perfnb.profile.tab:OPS",
    "perfnb.compiled.tab:TAB",
    "perfnb.timeline.tab:TAB",
    "perfnb.flame.tab:TAB",
    "perfnb.gpu.tab:TAB",
    "perfnb.findings.tab:TAB",
    "perfnb.memory.tab:TAB",
    "perfnb.roofline.tab:TAB",
    "perfnb.watching.tab:TAB",
)
#: What `load` opens in folders and in files. Asked in this order: put a specific kind before a general one.
FOLDERS = (
    "perfnb.profile.loading:LOADABLE",
    "perfnb.watching.saved:LOADABLE",
    "perfnb.flame.reading:SAVED",
    "perfnb.experiments.loading:LOADABLE",
    "perfnb.profile.timing:LOADABLE",
    "perfnb.loop.run:LOADABLE",
    "perfnb.loop.rank_runs:LOADABLE",
    "perfnb.ranks.ranks:LOADABLE",
    "perfnb.ranks.ranks:FOLDER_OF_TRACES",
)
FILES = (
    "perfnb.watching.gpu_logs:LOADABLE",
    "perfnb.memory.snapshot.snapshot:LOADABLE",
    "perfnb.flame.reading:LOADABLE",
    "perfnb.profile.loading:TRACE",
)
#: Reads a list of traces or saved profiles, given their paths, `Limits` and the executor: the ranks of one job.
SEVERAL = "perfnb.ranks.ranks:load_several"
#: Makes the public object of several recordings: the ranks that one file holds.
OF_RECORDINGS = "perfnb.ranks.ranks:of_recordings"
#: Tries the lever of a finding on the step of a profile.
TRY_ONE = "perfnb.remedies.try_levers:try_one"

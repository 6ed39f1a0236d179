"""List the objects that the profile looks up by name.

These are the tabs of the report, the kinds of files that `load` opens, and the functions that try levers. This is the
only place where a package refers to the packages above it. Each entry consists of a module and the name of an object in
it. The module is imported when the entry is first needed, so the lower packages do not depend on it.
"""

from __future__ import annotations

#: The tabs in the order of the report. To add a tab, define an object in its package and add a line here.
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
#: The kinds of folders and files that `load` opens. They are checked in this order, so specific kinds must come before
#: general ones.
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
#: Reads a list of traces or saved profiles as the ranks of one job, given their paths, `Limits` and the executor.
SEVERAL = "perfnb.ranks.ranks:load_several"
#: Reduces traces to journal entries, given their paths, the journal's folder, `Limits`, the executor and the steps.
FLEET = "perfnb.experiments.fleet:reduce_traces"
#: Creates the public object for several recordings, which are the ranks contained in one file.
OF_RECORDINGS = "perfnb.ranks.ranks:of_recordings"
#: Tries a finding's lever on the step of a profile.
TRY_ONE = "perfnb.remedies.try_levers:try_one"
#: Chooses the levers for the steps of a running loop, and switches them on and off after the loop's first profile.
FOR_LOOPS = "perfnb.remedies.blocks:levers_for_loops"
IN_LOOP = "perfnb.remedies.loop_trial:begin_trial"

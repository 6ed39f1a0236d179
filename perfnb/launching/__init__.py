"""Starts the ranks of a job, profiles all of them, and measures what more ranks gain.

`profile_ranks` writes an `order` into a `job_folder`. `job` has an `agent` start a process for each rank, which begins
in `child`; `engines` has running engines of ipyparallel carry the ranks, each through `engine`. Both then run `rank`,
whose passes are equally long on all ranks by an `agreement`. `rank_scaling` runs several such jobs.

The room is large because ranks can fail, hang, be interrupted and be killed in two kinds of processes, and none of that
may leave anything behind; and because it holds the study of scaling with its table and picture.
"""

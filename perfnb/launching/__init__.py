"""Start the ranks of a job, profile all of them, and measure the gain of more ranks.

`profile_ranks` writes an `order` into a `job_folder`. `job` has an `agent` start a process for each rank, which begins
in `child`; `engines` has running engines of ipyparallel carry the ranks, each through `engine`. Both then run `rank`,
whose passes are equally long on all ranks by an `agreement`. `rank_scaling` runs several such jobs.

The room is large because ranks can fail, hang, be interrupted and be killed in two kinds of processes, and none of that
may leave anything behind; and because it holds the study of scaling with its table and picture.
"""

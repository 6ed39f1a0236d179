"""Start the ranks of a job, profile all of them, and measure how much more ranks gain.

`profile_ranks` writes an `order` into a `job_folder`. `job` uses an `agent` to start a process for each rank, which
begins in `child`. `engines` runs the ranks on existing ipyparallel engines, each of which begins in `engine`. In both
cases, the process then runs `rank`, and an `agreement` makes the passes equally long on all ranks. `rank_scaling` runs
several such jobs.

The room is large because ranks can fail, hang, be interrupted and be killed in two kinds of processes, and none of
these cases may leave anything behind. It also contains the scaling study with its table and picture.
"""

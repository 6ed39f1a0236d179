"""Start and profile the ranks of a job, and measure how a job scales with the number of ranks.

`profile_ranks` writes an `order` to a `job_folder`. `job` uses an `agent` to start a process for each rank, whose entry
point is in `child`. `engines` runs the ranks on existing ipyparallel engines, whose entry point is in `engine`. In both
cases, the process then runs `rank`, and an `agreement` ensures that all ranks run the same number of steps in each
pass. `rank_scaling` runs several such jobs.

This package is large because ranks can fail, hang, be interrupted or be killed in two kinds of processes, and none of
these cases may leave anything behind. It also contains the scaling study with its table and picture.
"""

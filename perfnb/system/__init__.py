"""`system_check`: is this machine set up to compute fast, and to give steady timings?"""

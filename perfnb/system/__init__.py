"""`system_check`: is this machine set up to be fast, and to be measured?"""

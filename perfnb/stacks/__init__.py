"""Read call stacks from other tools' profiles, and compute the time spent in each function."""

"""Stacks of calls: read other tools' profiles from files, and compute the time of each function."""

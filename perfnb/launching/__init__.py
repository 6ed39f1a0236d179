"""Starts the ranks of a job, profiles all of them, and measures what more ranks gain."""

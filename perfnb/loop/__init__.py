"""Profiles of some steps of a loop that goes on."""

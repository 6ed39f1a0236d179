"""Callbacks by which trainers have some of their steps profiled; each module needs its trainer."""

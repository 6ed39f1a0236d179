"""The raw tables of one run: their schema, and how they are made from a trace, saved and loaded.

The room is large because the declarations of frames and facts, by which every file is checked, take a third of it.
"""

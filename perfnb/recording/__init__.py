"""The raw tables of one run: their schema, and how they are made from a trace, saved and loaded.

The room is large because a third of it consists of the declarations of tables and facts, which every file is checked
against.
"""

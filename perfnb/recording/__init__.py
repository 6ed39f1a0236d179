"""The raw tables of one run: their schema, and the code that builds them from a trace, saves them and loads them.

This package is large because about a third of it declares tables and facts. Every file is checked against these
declarations.
"""

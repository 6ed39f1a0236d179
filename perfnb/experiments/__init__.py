"""Experiments on a step: `ab_test`, and the `journal` that keeps what was tried.

The room is large because both have four forms (text, Markdown or a table, HTML, a picture), and both are saved.
"""

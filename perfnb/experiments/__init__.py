"""Decide about changes and keep track of them: `report` and `journal`."""

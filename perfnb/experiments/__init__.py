"""Decisions about changes: `report` and `journal`."""

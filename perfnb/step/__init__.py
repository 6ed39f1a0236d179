"""Runs a live step in passes and records it. Measures with torch; knows no report."""

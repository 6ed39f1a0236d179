"""File formats: a trace file in, columns of events out. Imports no torch."""

"""File formats: a trace file in, columns of events out. Knows neither torch nor pandas."""

"""File formats: a raw trace in, columns of events out; one module a format. Knows no torch and no plotting."""

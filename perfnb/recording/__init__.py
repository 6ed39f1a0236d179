"""One run's raw tables: their schema, how they are made from a trace, saved and loaded."""

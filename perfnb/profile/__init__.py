"""`Profile` and its report: binds what the rooms above say of one recording."""

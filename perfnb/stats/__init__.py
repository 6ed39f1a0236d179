"""Statistics on plain numbers: intervals, paired comparisons, fits. Pure functions that know no trace."""

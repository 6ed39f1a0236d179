"""Building blocks of every view: palette, text, tables, bars, pictures, escaping, widgets and basic JavaScript."""

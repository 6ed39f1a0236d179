"""What every view is made of: palette, text, tables, bars, pictures, escaping, widgets and their scripts."""

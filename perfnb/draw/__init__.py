"""Tools for displaying results: palette, tables, bars, trees, pictures, escaping, pages and basic JavaScript.

The package is large because it contains the data model that describes every result (`document`) and the modules that
render it as text, as HTML without scripts and as JSON (`as_text`, `as_html`, `as_json`). A single script (`js/`) draws
every live view from this JSON.
"""

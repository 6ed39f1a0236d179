"""The tools that display results: palette, tables, bars, trees, pictures, escaping, pages and basic JavaScript.

The room is large because it contains the description of every result (`document`) and the modules that render it as
text, as HTML without scripts and as JSON (`as_text`, `as_html`, `as_json`). A single script draws every live view from
this JSON (`js/`).
"""

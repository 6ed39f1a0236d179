"""Drawing: text, HTML, the report in the browser."""

"""`watch`: telemetry over time, as frames and charts."""

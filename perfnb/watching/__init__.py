"""Define `watch`, which records telemetry over time and shows it as tables and charts.

This package is large because charts that grow while you watch them need their own data, pictures and widget. It also
reads GPU logs.
"""

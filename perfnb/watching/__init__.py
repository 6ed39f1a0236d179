"""`watch`: telemetry over time, as frames and charts.

The room is large because charts that grow while they are watched need their own data, pictures and widget; it also
reads logs of GPUs.
"""

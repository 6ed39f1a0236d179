"""`watch`: record telemetry over time, and show it as tables and charts.

The room is large because charts that grow while they are being watched need their own data, pictures and widget. It
also reads GPU logs.
"""

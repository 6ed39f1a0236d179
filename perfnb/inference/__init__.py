"""Latency of a model under load: service times, queues, batches, tokens.

The room is large because it answers three questions, each with its own measurement: latency under load
(`request_runner` measures, `load_model` and `queueing` compute, `latency` binds), backends (`compare_inference`), and
speculative decoding (`compare_decoding`).
"""

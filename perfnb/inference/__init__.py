"""Inference measurements: latency under load, backends, and speculative decoding.

This package is large because it answers three questions, each with a separate measurement. For latency under load,
`request_runner` measures requests, `load_model` and `queueing` compute the effects of load, and `latency` combines the
two. `compare_inference` compares backends, and `compare_decoding` measures the gain from speculative decoding.
"""

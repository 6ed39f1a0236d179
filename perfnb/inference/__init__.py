"""Latency of a model under load: service times, queues, batches, tokens."""

"""Experiments on a step: `ab_test`, and the `journal` that keeps what was tried."""

"""Timing without instrumentation: `time_step`, `ab_test`, `confirm_input_bound`, `selfcheck`."""

"""Timing without instruments: `time_step`, `ab_test`, `confirm_input_bound`, `selfcheck`."""

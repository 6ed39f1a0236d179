"""Whole training scripts whose loaders sleep, so that it is known what they wait for."""

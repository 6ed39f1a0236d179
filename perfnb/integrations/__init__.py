"""Callbacks that let trainers profile some of their steps. Each module requires its trainer to be installed."""

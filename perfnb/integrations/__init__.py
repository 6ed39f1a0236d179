"""Callbacks that let trainers profile some of their steps; each module needs its trainer."""

"""Measure perfnb's own cost relative to torch in the same run. `make bench` prints the results; nothing is asserted."""

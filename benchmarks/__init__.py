"""What perfnb itself costs, as ratios to torch in the same run. `make bench` prints them; nothing is asserted."""

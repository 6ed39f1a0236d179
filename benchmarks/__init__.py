"""What perfnb itself costs, as ratios against torch in one run. Nothing here asserts; `make bench` prints."""

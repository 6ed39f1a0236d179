"""What the GPUs did: busy and idle time, launches, the critical path."""

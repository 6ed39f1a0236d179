"""What GPUs did and waited for: busy and idle time, launches, and the critical path."""

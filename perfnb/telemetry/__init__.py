"""What the machine does while code runs: a process that samples it, and the readers of its sensors."""

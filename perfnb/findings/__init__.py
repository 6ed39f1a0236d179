"""What holds a step back: one rule per bottleneck, and the verdict."""

"""Compare two profiles: match their layers and ops, and find the changes."""

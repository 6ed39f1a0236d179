"""Two profiles side by side: which layer or op is which, and what changed."""

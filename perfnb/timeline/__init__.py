"""What ran when, as intervals on tracks; exported as a Chrome trace."""

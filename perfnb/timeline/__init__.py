"""What ran when, as intervals on tracks; export as a Chrome trace."""

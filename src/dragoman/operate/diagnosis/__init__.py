"""What `dragoman doctor` checks."""

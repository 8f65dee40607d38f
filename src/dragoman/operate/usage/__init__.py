"""What was used: rows, sums and the filter of the list of requests."""

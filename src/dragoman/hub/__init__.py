"""What every protocol means: the values that requests, events, replies and failures are translated through."""

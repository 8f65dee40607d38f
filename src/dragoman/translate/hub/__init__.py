"""The common model of all protocols: requests, events, replies and failures are translated through these values."""

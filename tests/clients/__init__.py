"""Real clients, run through the gateway."""

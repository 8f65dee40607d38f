"""Who may use the gateway, and how much of it: client keys, limits and their counters, sessions of the console."""

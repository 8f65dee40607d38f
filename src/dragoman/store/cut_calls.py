"""How many lost tool calls are kept, and for how long."""

KEPT = 1000  # of all conversations; the oldest go first
LIFE_S = 3600

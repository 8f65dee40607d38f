"""How many lost tool calls are kept, and for how long."""

KEPT = 1000  # of all conversations; the oldest go first
KEPT_PER_TENANT = 200  # so that one client key cannot push out what the others' conversations lost
LIFE_S = 3600

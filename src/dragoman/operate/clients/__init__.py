"""Point clients at the gateway: their settings, and how they are launched."""

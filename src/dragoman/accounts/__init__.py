"""Client keys; vendors' credentials, kept alive and shared out; what conversations lost; usage on its way to the store."""

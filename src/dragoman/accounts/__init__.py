"""Client keys; credentials of vendors, kept alive and shared out; what conversations lost; usage for the store."""

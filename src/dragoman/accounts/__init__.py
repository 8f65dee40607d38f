"""Client keys and console sessions, credentials of upstream accounts, lost tool calls, and usage for the store."""

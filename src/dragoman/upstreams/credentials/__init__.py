"""Credentials of upstream accounts: where they are, their renewal, pools and cooldowns."""

"""Stored responses and conversations: what requests refer to, and what is kept of replies."""

"""Servers that implement a vendor's protocol without being that vendor."""

"""Servers that implement a vendor's protocol without being that vendor: finding them, and probing their quirks."""

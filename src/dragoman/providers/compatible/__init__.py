"""Any server that speaks a vendor's protocol without being that vendor."""

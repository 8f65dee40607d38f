"""Captures of requests: recording, masking, writing and reading them."""

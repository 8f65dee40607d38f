"""Clients that lose their connection at a random byte and come back for the rest."""

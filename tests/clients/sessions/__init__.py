"""Whole sessions of real agents: how they are recorded, and the reader of the recordings."""

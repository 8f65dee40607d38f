"""Kiro: its accounts, its hosts and its models."""

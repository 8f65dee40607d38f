"""dragoman: an LLM protocol gateway."""

__version__ = "0.1.0"

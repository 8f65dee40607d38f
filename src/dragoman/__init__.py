"""dragoman: an LLM protocol gateway."""

__version__ = "0.2.0"

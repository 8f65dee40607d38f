"""dragoman: an LLM protocol gateway."""

__version__ = "0.3.0"

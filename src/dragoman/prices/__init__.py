"""Prices: a provider, a model and what was used come in; what it costs goes out, or None where nobody knows."""

from dragoman.prices.pricing import Pricing

__all__ = ["Pricing"]

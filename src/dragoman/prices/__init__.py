"""The cost of requests, as far as prices are known."""

from dragoman.prices.pricing import Pricing

__all__ = ["Pricing"]

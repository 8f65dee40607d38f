"""Token counts in one meaning: input includes what was cached, output includes reasoning."""

from enum import Enum

from msgspec import Struct


class Source(Enum):
    """The best known first."""

    REPORTED = "reported"
    DERIVED = "derived"
    ESTIMATED = "estimated"


class Usage(Struct, frozen=True, gc=False):
    input: int = 0  # total: fresh + read from cache + written to cache
    output: int = 0  # total: visible + reasoning
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0  # the part of cache_write that lives for an hour
    reasoning: int = 0
    web_searches: int = 0
    context: int | None = None  # input and output together, where the upstream tells only that (then DERIVED)
    credits: float | None = None
    service_tier: str | None = None  # in OpenAI's spelling
    source: Source = Source.REPORTED

    def __add__(self, other: "Usage") -> "Usage":
        """Of two replies together, no better known than the worse known of them."""
        credits = [usage.credits for usage in (self, other) if usage.credits is not None]
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            cache_write_1h=self.cache_write_1h + other.cache_write_1h,
            reasoning=self.reasoning + other.reasoning,
            web_searches=self.web_searches + other.web_searches,
            credits=sum(credits) if credits else None,
            service_tier=other.service_tier,
            source=max(self.source, other.source, key=list(Source).index),
        )

    @property
    def fresh(self) -> int:
        """Input that was neither read from nor written to a cache: what Anthropic calls input_tokens."""
        return max(0, self.input - self.cache_read - self.cache_write)

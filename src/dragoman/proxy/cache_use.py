"""Judge what the upstream's prompt cache had of a request, once its usage is known."""

from collections.abc import Sequence

from dragoman.proxy.outcome import UNKNOWN_CACHE_USE, CacheUse
from dragoman.translate.caching.outlook import CacheOutlook, Miss
from dragoman.translate.hub.usage import Usage, UsageSource

REPORTED = UsageSource.REPORTED  # looked up once: on Python 3.11, each look-up of a member is slow
UNKNOWN_MISS = CacheUse(miss=Miss.UNKNOWN.value)


def judge_use(outlooks: Sequence[CacheOutlook | None], usage: Usage | None) -> CacheUse:
    """Return what is known of the cache. `outlooks`: of each round of the reply, None where bytes passed."""
    if not outlooks or usage is None:
        return UNKNOWN_CACHE_USE
    if usage.source is not REPORTED and not usage.cache_read and not usage.cache_write:
        return UNKNOWN_CACHE_USE  # what was read is not known
    first, last = outlooks[0], outlooks[-1]
    if first is None or last is None:
        return UNKNOWN_CACHE_USE if usage.cache_read else UNKNOWN_MISS
    possible = round((usage.input - usage.later_input) * first.share + usage.later_input * last.share)
    miss = first.explain(usage.cache_read, possible)
    if miss is None:
        return CacheUse(possible)
    return CacheUse(possible, miss._value_, first.path or None)  # reading `value` is slow

"""Warn once of each session that loses its prompt cache."""

import logging
from collections import OrderedDict, deque

from msgspec import Struct, field

from dragoman.proxy.outcome import UNKNOWN_CACHE_USE, Outcome
from dragoman.translate.framing.redaction import one_line

REQUESTS = 10  # the last ones of a session, of which the share is computed
LEAST_SHARE = 0.8
MAX_SESSIONS = 10_000

log = logging.getLogger(__name__)
_Session = tuple[str, str, str, str]  # key, session, provider, model


class _Recent(Struct):
    tokens: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REQUESTS))  # read, possible
    has_warned: bool = False


class CacheWatch:
    """An observer of outcomes. It remembers a bounded number of sessions, those without requests the first to go."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[_Session, _Recent] = OrderedDict()

    def observe(self, outcome: Outcome) -> None:
        if outcome.cache_use is UNKNOWN_CACHE_USE or not outcome.origin.session or outcome.usage is None:
            return
        possible = outcome.cache_use.possible_tokens
        if possible is None:
            return
        id = (outcome.key, outcome.origin.session, outcome.provider, outcome.model)
        recent = self._sessions.pop(id, None) or _Recent()
        self._sessions[id] = recent
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        recent.tokens.append((min(outcome.usage.cache_read, possible), possible))
        if len(recent.tokens) == REQUESTS and not recent.has_warned:
            self._judge(recent, outcome)

    def _judge(self, recent: _Recent, outcome: Outcome) -> None:
        read, possible = (sum(counts) for counts in zip(*recent.tokens, strict=True))
        if read >= LEAST_SHARE * possible:
            return
        recent.has_warned = True
        log.warning(
            "Session %s read %d %% of what its prompt cache at %s could have had, over its last %d requests. Run: "
            "dragoman cache why %s",
            one_line(outcome.origin.session),
            100 * read // possible,
            one_line(outcome.route),
            REQUESTS,
            one_line(outcome.request_id),
        )

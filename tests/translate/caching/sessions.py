"""Send requests of clients to upstreams as the gateway builds them, with the memory of a session."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.translate.caching.memory import SessionId, SessionMemories
from dragoman.translate.hub.caching import BuiltPrompt, CacheMode, CachePlan
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from narrowing import present
from wire_json import JsonObject

ISSUERS = {"messages": "anthropic", "responses": "openai", "chat": "openai", "gemini": "gemini"}


class Session(Struct):
    """Requests of one client to one upstream. Without `memory` every request is placed by the stateless rule."""

    client: str
    upstream: str
    model: str = "claude-sonnet-5"
    name: str = "session"
    memory: SessionMemories | None = None
    mode: CacheMode = CacheMode.AUTO
    breakpoints: bool = False  # the upstream is OpenAI, with one of its newer models

    def send(self, body: JsonObject, at: float = 0.0) -> JsonObject:
        """Return the upstream request, and remember it as if its reply had begun."""
        sent: list[BuiltPrompt] = []
        id = SessionId("tenant", self.name, "provider", 0, self.model)
        known = None if self.memory is None else self.memory.recall(id, at)
        ttl = "5m" if known is None else known.ttl
        plan = CachePlan(self.mode, ttl, known, self.breakpoints, take=sent.append)
        built = build(self.client, self.upstream, body, self.model, plan)
        if self.memory is not None and sent:
            self.memory.record(id, sent[0].sent, at)
        return built


def build(client: str, upstream: str, body: JsonObject, model: str, plan: CachePlan) -> JsonObject:
    """Return the body that is sent to the upstream."""
    ledger = Ledger()
    speaker, target = present(PROTOCOLS[client].client), present(PROTOCOLS[upstream].upstream)
    request, _ = adapt_tools(speaker.parse(msgspec.json.encode(body), ledger), target.tool_limits, ledger)
    issuer = ISSUERS[upstream]
    built: JsonObject = msgspec.json.decode(
        target.build(request, Target(model, issuer, find_profile(model), cache=plan), ledger)
    )
    return built


def send_all(session: Session, bodies: Sequence[JsonObject], pause_s: float = 5.0) -> list[JsonObject]:
    return [session.send(body, at=number * pause_s) for number, body in enumerate(bodies)]

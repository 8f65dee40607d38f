"""The cases of the benchmark: which client asks which upstream, and how the reply comes."""

from dataclasses import dataclass
from typing import Literal

from bench.wire import EVENTS, LAST_WORDS, request_body

Mode = Literal["whole", "burst", "paced", "slow"]

PACE_S = {"paced": 0.005, "slow": 0.1}
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "kiro": "/generateAssistantResponse",
    "gemini": "/v1beta/models/",  # then the model and what is requested
}
NAMES = {"chat": "Chat", "messages": "Messages", "responses": "Responses", "kiro": "Kiro", "gemini": "Gemini"}
TERMINAL = {
    "chat": b"data: [DONE]",
    "messages": b"message_stop",
    "responses": b"response.completed",
    "gemini": b"finishReason",
}
MODE_TITLES = {
    "whole": "JSON reply, about 1 KB",
    "burst": f"stream of {EVENTS} events in one burst",
    "paced": f"stream of {EVENTS} events, one every 5 ms",
    "slow": f"stream of {EVENTS} events, one every 100 ms",
}


@dataclass(frozen=True)
class Case:
    """One client protocol before one upstream protocol, in one mode."""

    client: str
    upstream: str
    mode: Mode
    stored: bool = False  # the gateway keeps the response

    @property
    def name(self) -> str:
        return f"{self.client}>{self.upstream}/{self.mode}{'/stored' if self.stored else ''}"

    @property
    def title(self) -> str:
        way = f"{NAMES[self.client]} → {NAMES[self.upstream]}" if self.translated else f"{NAMES[self.client]} as is"
        return f"{way}, {self.mode}{', stored' if self.stored else ''}"

    @property
    def translated(self) -> bool:
        return self.client != self.upstream

    @property
    def paced(self) -> bool:
        return self.mode in PACE_S

    @property
    def baseline(self) -> "Case":
        """What a byte copier does with the same upstream bytes."""
        return Case(self.upstream, self.upstream, self.mode)

    @property
    def path(self) -> str:
        if self.client != "gemini":
            return PATHS[self.client]
        verb = ":generateContent" if self.mode == "whole" else ":streamGenerateContent?alt=sse"
        return f"{PATHS[self.client]}{self.model}{verb}"

    @property
    def model(self) -> str:
        """Names the upstream for a router and, to the fake upstream, the mode."""
        return f"{self.upstream}/bench-{self.mode}"

    @property
    def body(self) -> bytes:
        return request_body(self.client, self.model, stream=self.mode != "whole", store=self.stored)

    @property
    def proof(self) -> bytes:
        """What the end of a right answer contains."""
        return LAST_WORDS.encode() if self.mode == "whole" or self.client == "kiro" else TERMINAL[self.client]


WAYS = (
    ("chat", "chat"),
    ("messages", "chat"),
    ("chat", "messages"),
    ("responses", "chat"),
    ("chat", "kiro"),
    ("messages", "kiro"),
    ("chat", "gemini"),
    ("gemini", "chat"),
)
MODES: tuple[Mode, ...] = ("whole", "burst", "paced")
CASES = tuple(Case(client, upstream, mode) for client, upstream in WAYS for mode in MODES)
STORED_CASES = tuple(Case("responses", "chat", mode, stored=True) for mode in MODES)
CROWDS = (500, 1000)
CROWD_SPREAD_S = EVENTS * PACE_S["slow"] / 2  # so that all of a crowd live at once for as long as it took to gather
CROWD_CASES = tuple(Case(client, upstream, "slow") for client, upstream in WAYS[:2])
UPSTREAMS = tuple(dict.fromkeys(upstream for _, upstream in WAYS))

"""Replies that take several upstream requests: what each upstream answers, when the client leaves, and how it ends.

A request's text has its number, which chooses its story. The upstreams play the story by that number, and keep a bill:
which requests they got, and which tokens they reported.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import product
from urllib.parse import unquote

import msgspec

from asking import PATHS, make_body
from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, refusal, tool, words
from fakes.service import json_answer
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from operate.usage.client_requests import KEY
from operate.usage.counting_upstreams import Counts, counts_of, number_of
from raw_http import request_bytes
from scripting import write_error, write_reply
from scripting.replies import ScriptedReply, Stop, Text, ToolCall
from wire_json import JsonObject

TEXT = "Forty-two, as ever."
BEGUN = "Forty"  # the first piece of the text, as it is streamed
KIRO_MODEL = "claude-sonnet-4.5"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FOUND = json_answer({"results": [{"url": "https://a.example/1", "title": "One", "content": "Text of one."}]})
ROUNDS_OF_COUNTS = 10  # upstream requests of one request that have counts of their own


class Leaves(Enum):
    """When the client closes its connection."""

    NEVER = "never"
    REQUESTED = "when the last upstream request of its story has come"
    READ = "when it has read the first piece of the text"
    SEARCHED = "when the search has begun"


class Move(Enum):
    """What an upstream does with one request."""

    ANSWERS = "answers, and reports its counts"
    LIMITS = "refuses for now"
    FAILS = "fails"
    REJECTS = "rejects the credential"
    HANGS = "sends nothing, not even a head"
    OPENS = "sends its opening event, and then nothing"
    STALLS = "sends the first piece of the text, and then nothing"
    CLOSES = "sends its opening event, and resets the connection"
    BREAKS = "sends the first piece of the text, and resets the connection"
    TEARS = "sends half of its body, and resets the connection"
    PAUSES = "sends half of its body, and then nothing"
    SEARCHES = "calls the search, and reports its counts"
    CUTS = "cuts a call of the client's tool, and reports its counts"
    CUTS_ALL = "cuts a call, and with it its counts"
    RESTS = "sends the rest of the call, and reports its counts"


BILLED = (Move.ANSWERS, Move.SEARCHES, Move.CUTS, Move.RESTS)
UNCOUNTED = (Move.STALLS, Move.BREAKS, Move.CUTS_ALL)  # the client gets something of them, and their counts never come


@dataclass(frozen=True)
class Story:
    """What the targets do in turn, each until it has no move left."""

    moves: tuple[Move, ...]
    outcome: str = "ok"
    leaves: Leaves = Leaves.NEVER
    streamed: tuple[bool, ...] = (True, False)
    kind: str = "pair"  # or "tools", with a search of the gateway's, or "kiro"
    first: int = 0  # how many of the moves are the first target's; the rest are the second's

    def is_estimated(self, streamed: bool) -> bool:
        """Whether a part of the reply has no counts; nothing of an attempt that broke is part of a whole reply."""
        is_retried = not streamed and Move.BREAKS in self.moves
        return any(move in UNCOUNTED for move in (self.moves[-1:] if is_retried else self.moves))


M, S, WHOLE = Move, (True,), (False,)
GONE = "client_gone"
STORIES = (
    Story((M.ANSWERS,), first=1),
    Story((M.LIMITS, M.ANSWERS), first=2),
    Story((M.FAILS, M.FAILS, M.ANSWERS), first=2),
    Story((M.CLOSES, M.CLOSES, M.ANSWERS), streamed=S, first=2),
    Story((M.TEARS, M.ANSWERS), streamed=WHOLE, first=2),
    Story((M.TEARS, M.TEARS, M.ANSWERS), streamed=WHOLE, first=2),
    Story((M.PAUSES,), GONE, Leaves.REQUESTED, WHOLE, first=1),
    Story((M.HANGS,), GONE, Leaves.REQUESTED, first=1),
    Story((M.OPENS,), GONE, Leaves.REQUESTED, S, first=1),
    Story((M.STALLS,), GONE, Leaves.READ, S, first=1),
    Story((M.LIMITS, M.HANGS), GONE, Leaves.REQUESTED, first=2),
    Story((M.FAILS, M.FAILS, M.HANGS), GONE, Leaves.REQUESTED, first=2),
    Story((M.FAILS, M.FAILS, M.REJECTS), "upstream", first=2),
    Story((M.REJECTS, M.FAILS, M.FAILS), "upstream", first=1),
    # Another target continues
    Story((M.BREAKS, M.ANSWERS), streamed=S, first=1),
    Story((M.BREAKS, M.LIMITS, M.ANSWERS), streamed=S, first=1),
    Story((M.BREAKS, M.REJECTS), "lost", streamed=S, first=1),
    Story((M.BREAKS, M.FAILS, M.FAILS), "lost", streamed=S, first=1),
    Story((M.BREAKS, M.CLOSES, M.ANSWERS), streamed=S, first=1),
    Story((M.BREAKS, M.CLOSES, M.CLOSES), "lost", streamed=S, first=1),
    Story((M.BREAKS, M.STALLS), GONE, Leaves.REQUESTED, S, first=1),
    Story((M.BREAKS, M.HANGS), GONE, Leaves.REQUESTED, S, first=1),
    Story((M.BREAKS, M.LIMITS, M.HANGS), GONE, Leaves.REQUESTED, S, first=1),
    Story((M.LIMITS, M.BREAKS, M.ANSWERS), streamed=S, first=2),
    # The gateway searches
    Story((M.SEARCHES, M.ANSWERS), kind="tools"),
    Story((M.SEARCHES, M.SEARCHES, M.ANSWERS), kind="tools"),
    Story((M.LIMITS, M.SEARCHES, M.LIMITS, M.ANSWERS), kind="tools"),
    Story((M.SEARCHES, M.FAILS, M.FAILS), "upstream", kind="tools"),
    Story((M.SEARCHES, M.CLOSES, M.CLOSES), "lost", streamed=S, kind="tools"),
    Story((M.SEARCHES, M.OPENS), GONE, Leaves.REQUESTED, S, "tools"),
    Story((M.SEARCHES,), GONE, Leaves.SEARCHED, kind="tools"),
    Story((M.SEARCHES, M.HANGS), GONE, Leaves.REQUESTED, kind="tools"),
    Story((M.SEARCHES, M.SEARCHES, M.HANGS), GONE, Leaves.REQUESTED, kind="tools"),
    Story((M.SEARCHES, M.STALLS), GONE, Leaves.READ, S, "tools"),
    # Kiro cuts a call
    Story((M.ANSWERS,), kind="kiro"),
    Story((M.BREAKS, M.ANSWERS), streamed=WHOLE, kind="kiro"),
    Story((M.BREAKS, M.BREAKS), "lost", streamed=WHOLE, kind="kiro"),
    Story((M.CUTS, M.RESTS), kind="kiro"),
    Story((M.CUTS_ALL, M.RESTS), kind="kiro"),
    Story((M.CUTS, M.ANSWERS), kind="kiro"),  # which is no rest
    Story((M.CUTS, M.FAILS), kind="kiro"),
    Story((M.CUTS_ALL, M.FAILS), kind="kiro"),
    Story((M.FAILS, M.CUTS, M.RESTS), kind="kiro"),
    Story((M.CUTS, M.HANGS), GONE, Leaves.REQUESTED, kind="kiro"),
    Story((M.CUTS_ALL, M.HANGS), GONE, Leaves.REQUESTED, kind="kiro"),
    Story((M.HANGS,), GONE, Leaves.REQUESTED, kind="kiro"),
    Story((M.STALLS,), GONE, Leaves.READ, S, "kiro"),
)
PAIRS = (("chat", "messages"), ("messages", "responses"), ("responses", "chat"))
CASES = [
    (story, client, streamed)
    for streamed, client, story in product((True, False), PATHS, STORIES)
    if streamed in story.streamed
]


@dataclass(frozen=True)
class StoryRequest:
    number: int

    @property
    def id(self) -> str:
        return f"story-{self.number}"

    @property
    def story(self) -> Story:
        return CASES[self.number % len(CASES)][0]

    @property
    def client(self) -> str:
        return CASES[self.number % len(CASES)][1]

    @property
    def stream(self) -> bool:
        return CASES[self.number % len(CASES)][2]

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the providers, of which the first one gets the first moves."""
        turn = self.number // len(CASES)
        if self.story.kind == "pair":
            return PAIRS[(self.number + turn) % len(PAIRS)]
        return ("kiro",) if self.story.kind == "kiro" else ("tools",)

    @property
    def model(self) -> str:
        if self.story.kind == "pair":
            return "-".join(self.targets)
        return f"kiro/{KIRO_MODEL}" if self.story.kind == "kiro" else "tools/m"

    @cached_property
    def bytes(self) -> bytes:
        body = make_body(self.client, self.model, f"What is it? n={self.number}=", stream=self.stream)
        body |= {"pair": {}, "kiro": _tool_fields(self.client), "tools": _search_fields(self.client)}[self.story.kind]
        fields = ("connection: close", f"x-request-id: {self.id}")
        return request_bytes(PATHS[self.client], msgspec.json.encode(body), *fields, key=KEY)


def _tool_fields(client: str) -> JsonObject:
    function = {"name": "write", "description": "Writes a file.", "parameters": SCHEMA}
    tools: dict[str, JsonObject] = {
        "chat": {"type": "function", "function": function},
        "responses": {"type": "function", **function},
        "messages": {"name": "write", "description": "Writes a file.", "input_schema": SCHEMA},
    }
    return {"tools": [tools[client]]}


def _search_fields(client: str) -> JsonObject:
    if client == "chat":
        return {"web_search_options": {}}
    kind = "web_search_20250305" if client == "messages" else "web_search"
    return {"tools": [{"type": kind, "name": "web_search"} if client == "messages" else {"type": kind}]}


@dataclass
class Bill:
    """What the upstreams got and reported, by the number of the request."""

    requested: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # the targets
    counts: dict[int, list[Counts]] = field(default_factory=lambda: defaultdict(list))
    searches: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    on_change: Callable[[int], None] = lambda number: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take_move(self, number: int, target: str) -> tuple[Move, Counts]:
        """Note a request, and return what to do with it and the counts to report."""
        story = StoryRequest(number).story
        with self._lock:
            place = len(self.requested[number])
            self.requested[number].append(target)
            assert place < len(story.moves), f"{story} is over"
            counts = counts_of(number * ROUNDS_OF_COUNTS + place)
            if story.moves[place] in BILLED:
                self.counts[number].append(counts)
        self.on_change(number)
        return story.moves[place], counts

    def record_search(self, number: int) -> None:
        with self._lock:
            self.searches[number] += 1
        self.on_change(number)

    def is_time_to_leave(self, number: int) -> bool:
        story = StoryRequest(number).story
        if story.leaves is Leaves.SEARCHED:
            return bool(self.searches[number])
        return story.leaves is Leaves.REQUESTED and len(self.requested[number]) == len(story.moves)


class StoryUpstream(FakeUpstream):
    """Chat, Responses and Messages at one address, and a search service."""

    def __init__(self, bill: Bill) -> None:
        super().__init__()
        self._bill = bill
        self.choose = self._choose
        self.intercept = self._search

    def _search(self, request: ReceivedRequest) -> Answer | None:
        if "/search" not in request.path:
            return None
        number = number_of(unquote(request.path).encode())
        self._bill.record_search(number)
        hangs = StoryRequest(number).story.leaves is Leaves.SEARCHED
        return Answer(headless=True, end=End.HANG) if hangs else FOUND

    def _choose(self, request: ReceivedRequest) -> Answer:
        self.requests.clear()  # saves memory in a test of ten thousand requests
        number, protocol = number_of(request.body), request.path.rpartition("/")[2].replace("completions", "chat")
        move, counts = self._bill.take_move(number, str(request.json["model"]))
        streamed = bool(request.json.get("stream"))
        match move:
            case Move.LIMITS:
                return write_error(429, "Slowly.", retry_after="0")
            case Move.FAILS:
                return write_error(500, "Not now.")
            case Move.REJECTS:
                return write_error(401, "Who are you?")
            case Move.HANGS:
                return Answer(headless=True, end=End.HANG)
        query = msgspec.json.encode({"query": f"n={number}="}).decode()
        call = ToolCall(f"call_{len(self._bill.requested[number])}", "web_search", query)
        parts = (call,) if move is Move.SEARCHES else (Text(TEXT),)
        stop = Stop.TOOL if move is Move.SEARCHES else Stop.NATURAL
        answer = write_reply(protocol, ScriptedReply(parts, stop, counts.tokens), stream=streamed)
        if move in (Move.ANSWERS, Move.SEARCHES):
            return answer if streamed else replace(answer, chunked=False)
        if move in (Move.TEARS, Move.PAUSES):
            return replace(answer, body=answer.body[:-20], end=End.RESET if move is Move.TEARS else End.HANG)
        before = answer.body.rindex(b"\n\n", 0, answer.body.index(BEGUN.encode())) + 2
        if move in (Move.OPENS, Move.CLOSES):
            return replace(answer, body=answer.body[:before], end=End.HANG if move is Move.OPENS else End.RESET)
        begun = answer.body[: answer.body.index(b"\n\n", before) + 2]
        return replace(answer, body=begun, end=End.RESET if move is Move.BREAKS else End.HANG)


class StoryKiro(FakeKiro):
    def __init__(self, bill: Bill) -> None:
        super().__init__()
        self._bill = bill

    def _chat(self, request: ReceivedRequest) -> Answer:
        self.requests.clear()
        move, counts = self._bill.take_move(number_of(request.body), "kiro")
        usage = {
            "uncachedInputTokens": counts.fresh,
            "cacheReadInputTokens": counts.cached,
            "cacheWriteInputTokens": counts.written,
            "outputTokens": counts.output,
        }
        end = event("metadataEvent", {"stopReason": "END_TURN", "tokenUsage": usage})
        end += event("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": counts.credits})
        cut = words(TEXT) + tool("t1", "write", input='{"path": "notes/to')
        match move:
            case Move.FAILS:
                return refusal(500, "Not now.", kind="InternalServerException")
            case Move.HANGS:
                return Answer(headless=True, end=End.HANG)
            case Move.STALLS:
                return make_framed(words(BEGUN), end=End.HANG)
            case Move.BREAKS:
                return make_framed(words(BEGUN), end=End.RESET)
            case Move.CUTS:
                return make_framed(cut, end)
            case Move.CUTS_ALL:
                return make_framed(cut)
            case Move.RESTS:
                return make_framed(words('day.md"}'), end)
        assert move is Move.ANSWERS
        return make_framed(words(TEXT), end)

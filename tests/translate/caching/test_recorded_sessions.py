"""Bill the recorded sessions of real clients at every kind of upstream; docs/caching.md shows the result."""

import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec import Struct

from asking import PATHS
from clients.sessions.recorded import RecordedRequest, list_sessions, read_conversation, read_description
from dragoman.translate.caching.memory import SessionMemories
from rig import ONCE, Rig, run_rig
from translate.caching.sessions import Session
from translate.caching.simulator import (
    Bill,
    BreakpointCache,
    MessagesCache,
    PrefixCache,
    Price,
    Prompt,
    cost,
    least_cost,
    possible_share,
    read_chat,
    read_gemini,
    read_messages,
    read_responses,
    share,
)
from wire_json import JsonObject

DOCS = Path(__file__).resolve().parents[3] / "docs"
MARK, END = "<!-- table: written by make caching -->\n", "<!-- end of the table -->\n"
STALE = "write the page again: make caching"
WRITTEN_DEARER = Price()
AT_ONE = Price(write_5m=1.0)  # what is written costs what it would without a cache


class Vendor(Struct, frozen=True):
    """An upstream, with the rules by which it caches and bills."""

    name: str
    protocol: str
    model: str
    read: Callable[[JsonObject], Prompt]
    minimum: int
    open_cache: Callable[[], MessagesCache | BreakpointCache | PrefixCache]
    price: Price = WRITTEN_DEARER
    has_breakpoints: bool = False


VENDORS = (
    Vendor("Messages", "messages", "claude-sonnet-5", read_messages, 1024, lambda: MessagesCache(1024)),
    Vendor(
        "Responses",
        "responses",
        "gpt-5.6",
        read_responses,
        1024,
        lambda: BreakpointCache(read_responses),
        Price(),
        True,
    ),
    Vendor("Chat", "chat", "gpt-5.6", read_chat, 1024, lambda: BreakpointCache(read_chat), WRITTEN_DEARER, True),
    Vendor("compatible", "chat", "local", read_chat, 0, lambda: PrefixCache(read_chat, 0, 0), AT_ONE),
    Vendor("Gemini", "gemini", "gemini-3-pro", read_gemini, 4096, lambda: PrefixCache(read_gemini, 4096, 0), AT_ONE),
)


class Billed(Struct, frozen=True):
    """One session at one upstream."""

    session: str
    vendor: str
    passes: bool  # the client speaks the upstream's protocol, so its requests are not changed
    share: float  # of the input that was read from the cache, from the second request on
    possible: float
    ratio: float  # of the cost to the least cost
    unmarked: float  # of the cost to that of the same input without any cache

    def show(self) -> str:
        return f"{self.share:.1%} of {self.possible:.1%}, {self.ratio:.2f}" + (" (passed)" if self.passes else "")


def bill_session(name: str, vendor: Vendor) -> Billed:
    described, requests = read_description(name), read_conversation(name)
    passes = described.protocol == vendor.protocol
    session = Session(
        described.protocol,
        vendor.protocol,
        vendor.model,
        memory=SessionMemories(),
        breakpoints=vendor.has_breakpoints,
    )
    sent = [one.json if passes else session.send(one.json, at=one.at_s) for one in requests]
    return bill(described.name, vendor, requests, sent, passes=passes)


def bill(
    name: str, vendor: Vendor, requests: Sequence[RecordedRequest], sent: Sequence[JsonObject], *, passes: bool
) -> Billed:
    cache = vendor.open_cache()
    bills = [cache.send(body, at=one.at_s) for body, one in zip(sent, requests, strict=True)]
    prompts = [vendor.read(body) for body in sent]
    least = least_cost(prompts, vendor.minimum, vendor.price)
    possible = possible_share(prompts, vendor.minimum)
    spent = cost(bills, vendor.price)
    plain = cost([Bill(rest=bill.total) for bill in bills], vendor.price)
    return Billed(name, vendor.name, passes, share(bills), possible, spent / least, spent / plain)


SESSIONS = sorted(name for name in list_sessions() if not name.endswith("second"))
SAMPLE = [("aider", "Messages"), ("codex-gpt-5.5", "Messages"), ("gemini-cli", "Responses")]


def check_bill(one: Billed) -> None:
    if one.session == "aider" and one.passes:
        return  # it sends no marks, and its bytes get none of ours
    assert one.share >= 0.98 * one.possible, one
    assert one.ratio <= 1.03, one
    if one.session == "aider" and one.vendor == "Messages":
        assert one.unmarked <= 1.03, one


@pytest.mark.parametrize(("session", "vendor"), SAMPLE)
def test_a_client_reads_what_it_can_from_the_cache(session: str, vendor: str) -> None:
    place = [one.name for one in VENDORS].index(vendor)
    billed = bill_session(session, VENDORS[place])
    check_bill(billed)
    [row] = [line for line in (DOCS / "caching.md").read_text().splitlines() if line.startswith(f"| {session} |")]
    assert row.split(" | ")[1 + place].removesuffix(" |") == billed.show(), STALE


UPSTREAMS = {"Messages": "messages", "Responses": "openai"}  # of the rig, by vendor


@pytest.mark.rest
@pytest.mark.parametrize(("session", "vendor"), SAMPLE)
def test_a_running_gateway_sends_what_the_table_shows(session: str, vendor: str, tmp_path: Path) -> None:
    [chosen] = [one for one in VENDORS if one.name == vendor]
    requests, upstream = read_conversation(session), UPSTREAMS[vendor]
    with run_rig(tmp_path, ONCE, upstreams=(upstream,)) as rig:
        sent = [send_recorded(rig, session, upstream, chosen.model, one) for one in requests]
    assert bill(session, chosen, requests, sent, passes=False).show() == bill_session(session, chosen).show()


def send_recorded(rig: Rig, session: str, upstream: str, model: str, request: RecordedRequest) -> JsonObject:
    """Send a request as its client did, and return what the upstream got."""
    protocol, target = read_description(session).protocol, f"{upstream}/{model}"
    body, path = request.json, PATHS.get(protocol, f"/v1beta/models/{quote(target, safe='')}:streamGenerateContent")
    if protocol in PATHS:
        body["model"] = target
    fake = rig.play(upstream, "Yes.", stream=protocol == "gemini" or bool(body.get("stream")))
    reply = rig.send("POST", path, body, headers=dict(request.headers))
    assert (reply.status, len(fake.calls)) == (200, 1), reply.body
    return fake.calls[0].json


@pytest.mark.rest
def test_every_client_reads_what_it_can_from_the_cache_of_every_upstream() -> None:
    billed = [bill_session(name, vendor) for name in SESSIONS for vendor in VENDORS]
    assert len(billed) == 8 * len(VENDORS)
    for one in billed:
        check_bill(one)
    page, picture = DOCS / "caching.md", DOCS / "caching.svg"
    before, _, rest = page.read_text().partition(MARK)
    _, _, after = rest.partition(END)
    expected = before + MARK + render_table(billed) + END + after
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        page.write_text(expected)
        picture.write_text(draw(billed))
    assert page.read_text() == expected, STALE
    assert picture.read_text() == draw(billed), STALE


def render_table(billed: list[Billed]) -> str:
    names = [vendor.name for vendor in VENDORS]
    lines = [f"| client | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for session in dict.fromkeys(one.session for one in billed):
        cells = [one.show() for one in billed if one.session == session]
        lines.append(f"| {session} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TITLE = "Input read from the prompt cache, from the second request on; the line: what could be read"
LEFT, WIDTH, BAR, GAP, TOP = 250, 420, 9, 16, 46
COLOURS = ("#c2410c", "#047857", "#7c3aed", "#6b7280", "#1d4ed8")


def draw(billed: list[Billed]) -> str:
    """Return bars of what was read, each with a line at what could be."""
    sessions = list(dict.fromkeys(one.session for one in billed))
    height = TOP + len(sessions) * (len(VENDORS) * BAR + GAP) + 10
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 70} {height}"'
    parts = [
        f'<svg {box} font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDTH + 70}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="18" font-size="14">{TITLE}</text>',
    ]
    for number, vendor in enumerate(VENDORS):
        x = 10 + number * 110
        parts.append(f'<rect x="{x}" y="27" width="9" height="9" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 13}" y="36">{escape(vendor.name)}</text>')
    y = TOP
    for session in sessions:
        middle = y + len(VENDORS) * BAR / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle:g}" text-anchor="end">{escape(session)}</text>')
        for colour, one in zip(COLOURS, (one for one in billed if one.session == session), strict=True):
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{one.share * WIDTH:.1f}" height="{BAR - 2}" fill="{colour}"/>'
            )
            possible = LEFT + one.possible * WIDTH
            parts.append(f'<path d="M{possible:.1f} {y - 1}v{BAR}" stroke="#111827"/>')
            parts.append(f'<text x="{LEFT + WIDTH + 8}" y="{y + 7}" font-size="9">{one.share:.1%}</text>')
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>"]) + "\n"

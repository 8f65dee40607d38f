"""Write docs/compatibility.md: what each pair of protocols carries and loses, as test_page and test_matrix prove it.

The console shows the losses of requests, too: `CONSOLE_LOSSES` has them as JSON.
"""

import re
from itertools import product
from pathlib import Path

import msgspec

from deletion import Built, Turned, outcome, remove_value
from deletion import find_blamed as blamed_part
from e2e.cases import BROKEN, CASES
from rig import ALL_UPSTREAMS, CLIENTS
from scripting.replies import NO_REFUSALS, Refusal, Stop, limit_to_protocol
from sdk_replies import STOPS

Cell = tuple[str, str, str]  # client, upstream, capability

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
CONSOLE_LOSSES = ROOT / "src" / "dragoman" / "console" / "losses.json"
FIXTURES = ROOT / "tests" / "fixtures"
INVENTED = re.compile(r"/(mood|vendor_field|padding|note|cache|extra)$")  # no protocol has these: the fixtures do
IMAGES = "images in a request"
CAPABILITIES = (*CASES, IMAGES, *BROKEN)
NAMES = {"chat": "Chat", "responses": "Responses", "messages": "Messages", "gemini": "Gemini", "kiro": "Kiro"}
PAIRS = list(product(CLIENTS, ALL_UPSTREAMS))
NO_END = "an end without terminator"
PARTLY_KIRO = (IMAGES, "cached and reasoning tokens", NO_END)
# What a gateway with a store does itself before it translates: tests/state proves it over every upstream.
SERVED = re.compile("runs no background responses|this gateway has no store|a reference to a stored item")


def page() -> str:
    return "\n".join([*_head(), *_replies(), *_requests()])


def _head() -> list[str]:
    return [
        "# Compatibility",
        "",
        "What each pair of protocols carries and loses. `make matrix` writes this page from the test results; a test",
        "fails when it is stale. The official openai, anthropic and google-genai SDKs read every reply over real",
        "sockets: whole, and streamed in one piece, byte by byte, and in pieces of seven bytes.",
        "[clients.md](clients.md) lists which real client works on which upstream.",
        "",
    ]


def _replies() -> list[str]:
    columns = [f"{NAMES[client]} ← {NAMES[upstream]}" for client, upstream in PAIRS]
    return [
        "## Replies",
        "",
        "Client ← upstream.",
        "",
        "- `=` the bytes pass through, with an error event appended if the end is missing",
        "- `✓` translated exactly",
        "- `~` translated to the nearest equivalent in the client's protocol, or only in part",
        "- `–` the upstream's protocol cannot express it",
        "",
        "Of Kiro: images are sent as data, and one by its address is refused, or fetched with `[fetch]`; cached",
        "tokens are counted, those of reasoning are not; a reply that lacks its last events ends as one that was",
        "cut by its length. [kiro.md](kiro.md) says what else is different.",
        "",
        "| | " + " | ".join(columns) + " |",
        "|-" * (len(columns) + 1) + "|",
        *(
            f"| {capability} | " + " | ".join(_mark(*pair, capability) for pair in PAIRS) + " |"
            for capability in CAPABILITIES
        ),
        "",
    ]


def _mark(client: str, upstream: str, capability: str) -> str:
    case = CASES.get(capability)
    text = None if case is None else limit_to_protocol(case.scripted, upstream)
    if (
        case is not None
        and text is not None
        and text.stop is not case.scripted.stop
        and not case.scripted.parts_of(Refusal)
    ):
        return "–"
    if client == upstream:
        return "="
    if upstream == "kiro" and capability in PARTLY_KIRO:
        return "~"
    if text is not None and (_is_nearest(client, text.stop) or (client in NO_REFUSALS and text.parts_of(Refusal))):
        return "~"
    return "✓"


def _is_nearest(client: str, stop: Stop) -> bool:
    """Return whether this client's protocol writes the stop with a word that first means another one."""
    first = next(other for other, word in STOPS[client].items() if word == STOPS[client][stop])
    return stop is not first and stop is not Stop.TOOL


def _requests() -> list[str]:
    lines = [
        "## Requests",
        "",
        "What a request with nearly every field of its protocol loses in translation, as listed by",
        "`x-dragoman-explain: 1`, and which fields are refused. Fields that are not listed are translated.",
        "Background responses, conversations, `previous_response_id` and item references are served by the",
        "gateway itself over every upstream: [stored responses](stored-responses.md). So are web search and web",
        "fetch where it has a service for them, as with a Kiro account: [server tools](server-tools.md). The",
        "tables say what is lost without one.",
    ]
    for client, upstream in PAIRS:
        if client != upstream:
            lines += ["", f"### {NAMES[client]} → {NAMES[upstream]}", "", *_losses(client, upstream)]
    return [*lines, ""]


def console_losses() -> str:
    """Return the losses by client, then by upstream, as rows of field, how and why: one pair on each line."""
    by_client = [
        f'"{client}":{{\n' + ",\n".join(_losses_as_json(client, up) for up in ALL_UPSTREAMS if up != client) + "\n}"
        for client in CLIENTS
    ]
    return "{\n" + ",\n".join(by_client) + "\n}\n"


def _losses_as_json(client: str, upstream: str) -> str:
    rows = [row for row in _find_losses(client, upstream) if not INVENTED.search(row[0]) and "hologram" not in row[2]]
    return f'"{upstream}":{msgspec.json.encode(rows).decode()}'


def _losses(client: str, upstream: str) -> list[str]:
    rows = _find_losses(client, upstream)
    table = (f"| `{path}` | {how} | {why.replace('|', chr(92) + '|')} |" for path, how, why in rows)
    return ["| field | how | why |", "|-|-|-|", *table]


def _find_losses(client: str, upstream: str) -> list[tuple[str, str, str]]:
    """Return what is lost of a request with nearly every field of its protocol: field, how, why."""
    response: dict[tuple[str, str, str], None] = {}
    for file in [FIXTURES / client / "request.json", *sorted((FIXTURES / "deletion").glob(f"{client}-*.json"))]:
        body = msgspec.json.decode(file.read_bytes())
        while isinstance(found := outcome(client, upstream, body), Turned):
            assert found.at
            if not SERVED.search(found.message):
                response[(_shape(found.at), "refused", _plain(found.message, found.at))] = None
            body = remove_value(body, blamed_part(body, found.at))
        assert isinstance(found, Built)
        for loss in found.ledger:
            response[(_shape(loss.path), loss.how.value, _plain(loss.why, loss.path))] = None
    return sorted(response)


def _shape(pointer: str) -> str:
    return re.sub(r"/\d+(?=/|$)", "/*", pointer)


def _plain(why: str, at: str) -> str:
    return why.replace(at, _shape(at))

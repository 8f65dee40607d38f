"""Law 4 for every function that reads what others sent: pages, tools, errors, envelopes, lists, heads.

A function of these packages whose name says that it reads must be listed here: with hostile input of growing size, or
with the reader through which it gets such input.
"""

import ast
import asyncio
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
import pytest

import dragoman
from dragoman.config.syntax import describe_syntax_error
from dragoman.net.bodies import BudgetShare, ByteBudget, ChunkedBody
from dragoman.net.dial import parse_url
from dragoman.net.headers import Headers
from dragoman.net.http_request import make_post
from dragoman.net.request_head import UnreadBytes, parse_head
from dragoman.net.sink import ReplySink
from dragoman.operate.usage.request_filter import parse_filter
from dragoman.proxy.complete_reply import FENCE, FENCE_IN_PROSE
from dragoman.proxy.failures import _parse_date
from dragoman.proxy.request_record import read_sender
from dragoman.proxy.run_headers import read_cursor
from dragoman.proxy.sessions import _read_session_fields
from dragoman.server.api.teams import CREATE_TEAM
from dragoman.server.console.gateway_rows import read_position
from dragoman.server.console.site import _parse_sign_in
from dragoman.server.models import read_parameters
from dragoman.server.responses import _read_cursor
from dragoman.server.routes import RoutedRequest
from dragoman.server_tools.addresses import DomainRules, find_named, to_ascii
from dragoman.server_tools.charsets import CODECS
from dragoman.server_tools.guarded_fetch import Fetched, _decode_location
from dragoman.server_tools.mcp import McpToolResult, ToolContent
from dragoman.server_tools.readable import decode_text, read_html
from dragoman.server_tools.tool_results import read_page as read_tool_page
from dragoman.server_tools.tool_results import read_search
from dragoman.server_tools.web_fetch import read_page
from dragoman.server_tools.web_search import _read_brave
from dragoman.state.context import OwnedResponses, read_context
from dragoman.state.service import read_page as read_item_page
from dragoman.tenancy.keys import KeyId
from dragoman.translate.caching.rendering import read_list, read_object
from dragoman.translate.framing.error_text import clean_message, strip_html
from dragoman.translate.framing.fields import read_call_head
from dragoman.translate.framing.hostnames import decode_host, encode_host
from dragoman.translate.framing.jsonread import decode_or, parse_or, read_input_tokens, read_json, read_json_leniently
from dragoman.translate.framing.multipart import read_boundary
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.hub.checksum import decode_checked, encode_checked
from dragoman.translate.hub.events import CallBlock
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import (
    Opaque,
    OpaqueForm,
    Thought,
    decode_envelope,
    encode_envelope,
    seal_thoughts,
    unseal_thoughts,
)
from dragoman.translate.hub.server_tools import (
    SourceText,
    ToolUseRecord,
    WebPage,
    read_sealed_use,
    seal_source,
    seal_use,
    unseal_source,
)
from dragoman.translate.passes.server_tools import read_arguments
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.protocols.chat.errors import read_event_error
from dragoman.translate.protocols.echo.build import read_request as read_echo_request
from dragoman.translate.protocols.gemini.encode_blocks import read_arguments as read_call_arguments
from dragoman.translate.protocols.gemini.parse import read_call
from dragoman.translate.protocols.gemini.parse_fields import read_dialect, read_json_schema
from dragoman.translate.protocols.messages.wire import decode_call_id, decode_use_id
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS, EventStream, observe_document
from dragoman.translate.protocols.responses.errors import read_unusable
from dragoman.translate.protocols.responses.state_items import (
    Compaction,
    open_compaction,
    read_input,
    read_metadata,
    seal_compaction,
)
from dragoman.upstreams.account_state import parse_reset, read_exhausted_until
from dragoman.upstreams.codex.account import read_codex_exhausted_until
from dragoman.upstreams.codex.account import read_limits as read_codex_limits
from dragoman.upstreams.codex.credential import read_claims
from dragoman.upstreams.codex.credential import read_tokens as read_codex_tokens
from dragoman.upstreams.copilot.account import read_limits as read_copilot_limits
from dragoman.upstreams.copilot.account import read_quotas
from dragoman.upstreams.credentials.credential import parse_timestamp
from dragoman.upstreams.credentials.service_client import ServiceResponse
from dragoman.upstreams.kiro.credential import parse_method
from dragoman.upstreams.kiro.credential import read_tokens as read_kiro_tokens
from dragoman.upstreams.kiro.services import read_region
from dragoman.upstreams.models import parse_list
from dragoman.upstreams.rejections.complaint import read_complaint
from dragoman.upstreams.rejections.rules import find_rules
from dragoman.upstreams.rejections.sent import Sent
from laws import assert_linear_function
from linear_cover import COVERED, ELSEWHERE

SRC = Path(dragoman.__file__).parent
PACKAGES = (
    *("config", "net", "operate", "proxy", "server", "server_tools", "state", "store", "tenancy", "translate"),
    "upstreams",
)
OWN_HELPERS = ("net", "proxy", "server", "server_tools", "state")  # whose functions with an underscore are listed, too
READS = ("parse", "decode", "read", "unseal", "open")

Make = Callable[[int], bytes]  # a number of bytes, about -> input of that size


@dataclass(frozen=True)
class Reader:
    read: Callable[[bytes], object]  # may refuse its input by an exception
    inputs: Mapping[str, Make]
    size: int = 4000  # bytes of the smallest input


def repeat(*pieces: str | bytes, start: str = "", end: str = "") -> dict[str, Make]:
    """Return inputs that repeat one piece each."""
    return {
        repr(piece): _repeat_one(piece if isinstance(piece, bytes) else piece.encode(), start, end) for piece in pieces
    }


def _repeat_one(piece: bytes, start: str, end: str) -> Make:
    return lambda size: start.encode() + piece * (1 + size // len(piece)) + end.encode()


def write_json(value: Callable[[int], object]) -> Make:
    """Return an input of as many things as the size says, divided by 20."""
    return lambda size: msgspec.json.encode(value(size // 20))


def of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def of_json(read: Callable[[dict[str, object]], object]) -> Callable[[bytes], object]:
    return lambda data: read(msgspec.json.decode(data, type=dict[str, object]))


def of_headers(read: Callable[[Headers], object]) -> Callable[[bytes], object]:
    """Read header fields that stand in lines."""

    def read_lines(data: bytes) -> object:
        lines = [line.partition(b": ") for line in data.split(b"\n") if line]
        return read(Headers([(name, value) for name, _, value in lines]))

    return read_lines


NESTED = {"nested": lambda size: b'{"a":' * (size // 5) + b"1" + b"}" * (size // 5), **repeat("{", '[{"a":', "[")}

# Pages

PAGE_PIECES = (
    *(" ", "<", "<!--", "<b>", "<p>", "&", "&#9", "&amp", "<a href=", '<a href="', "<a x='", "<script>", "<title"),
    *("<main", "\t", "\n", " \n", "<p \"'", "</p", "<a href=/x>", "<nav>", "</textarea", "é", '<a href="?&#x0'),
)
CHARSETS = (
    *sorted(set(CODECS.values())),
    *(
        "punycode",
        "idna",
        "undefined",
        "unicode-escape",
        "raw-unicode-escape",
        "utf-7",
        "hz",
        "base64",
        "zlib",
        "rot13",
    ),
)


def decode_in_every_charset(body: bytes) -> None:
    for charset in CHARSETS:
        decode_text(body, f"text/plain; charset={charset}")


# Tools

PROSE: dict[str, Make] = {
    "titles": lambda size: "\n".join(f"Title: t{at}\nhttps://a.test/{at}" for at in range(size // 30)).encode(),
    "long titles": lambda size: (b"title: " + b"x" * 400 + b"\n") * (size // 400),
    "results": write_json(lambda size: [{"url": f"https://a.test/{at}"} for at in range(size)]),
    "nested": lambda size: b'{"data":' * (size // 9) + b"1" + b"}" * (size // 9),
    "one title": lambda size: b"title" + b":" * size,
    "one address": lambda size: b"https://" + b"a" * size,
    **repeat("\n", "- * ", "title: \n", "title", "https://a.test/b ", "https://", ":", " :\n"),
}


def make_tool_result(data: bytes) -> McpToolResult:
    return McpToolResult([ToolContent("text", data.decode())])


# Addresses

ADDRESS = "https://a.example/a?a?a?a?a?a?a"


def make_letters(size: int) -> bytes:
    return "".join(chr(0x4E00 + at % 20_000) for at in range(size)).encode()


# Errors of upstreams

FAULTS = (
    *("token ", "tool not supported chat/completions ", "User ID (", "<script>", "thinking ", "try again in 9", "["),
    *("invalid ", "api key", "usage limit ", "input token count ", "retry in 9", "Bearer ", "arn:aws", "sk-", "<"),
)


def make_error(words: str) -> Make:
    def write(size: int) -> object:
        error = {"message": words * size, "type": "t", "code": 400, "status": "s"}
        return {"error": error, "message": words * size, "type": "error"}

    return write_json(write)


ERRORS = {**repeat(*FAULTS), **NESTED, **{f"object of {words!r}": make_error(words) for words in FAULTS}}


def read_failures(protocol: str) -> Callable[[bytes], object]:
    upstream = PROTOCOLS[protocol].upstream
    assert upstream
    return lambda body: [upstream.read_error(status, {}, body) for status in (400, 403)]


# Envelopes

OPAQUE = Opaque("up", OpaqueForm.SIGNATURE, "c2ln", "m")
ANY_OBJECT = msgspec.json.Decoder(dict[str, object])


def feed_events(data: bytes) -> None:
    stream = EventStream(RELAYED_PATHS["completions"])
    stream.feed(data)
    stream.finish()


READERS: dict[str, Reader] = {
    "server_tools.readable:read_html": Reader(
        lambda page: read_html(decode_text(page, "text/html"), "https://a.example/dir/", 50_000),
        {**repeat(*PAGE_PIECES), **{f"pre {name}": make for name, make in repeat(*PAGE_PIECES, start="<pre>").items()}},
        8_000,
    ),
    "server_tools.readable:decode_text": Reader(
        decode_in_every_charset, repeat(b"ab", b"\xff\xfe\x80", b"\x1b$B", b"\x16\x04", b"~{", b"\x81\x30"), 8000
    ),
    "server_tools.web_fetch:read_page": Reader(
        lambda body: read_page(Fetched("https://a.example/x", "text/plain", "text/plain", body), 50_000),
        repeat("word ", "é", b"\xff"),
        20_000,
    ),
    "server_tools.tool_results:read_search": Reader(
        lambda data: read_search(make_tool_result(data), "mcp"), PROSE, 20_000
    ),
    "server_tools.tool_results:read_page": Reader(
        lambda data: read_tool_page(make_tool_result(data), "https://a.test", "mcp", 50_000), PROSE, 20_000
    ),
    "server_tools.addresses:find_named": Reader(
        of_text(lambda text: find_named(ADDRESS, text)),
        repeat("a?", ADDRESS + "." * 20 + "x ", ADDRESS + "0 ", ".", start="a.example/"),
        20_000,
    ),
    "tools.addresses:find_named of a long address": Reader(
        of_text(lambda url: find_named(url, url + "x ")), repeat("%C3%A4", "ä", "%", "a", start="https://a.example/")
    ),
    "server_tools.addresses:to_ascii": Reader(
        of_text(to_ascii), {"letters": lambda size: b"https://" + make_letters(size)}
    ),
    "tools.addresses:DomainRules.permits": Reader(
        of_text(lambda host: DomainRules(allowed=(host,)).permits(f"https://{host}/")), {"letters": make_letters}
    ),
    "translate.framing.hostnames:encode_host": Reader(
        of_text(encode_host), {"letters": make_letters, **repeat("a", "ä.")}
    ),
    "translate.framing.hostnames:decode_host": Reader(of_text(decode_host), repeat("a", "9", "xn--a.", start="xn--")),
    "net.dial:parse_url": Reader(of_text(parse_url), repeat("a.", "/", "@", ":", "[", start="https://")),
    "net.request_head:parse_head": Reader(
        lambda raw: parse_head(raw, 1_000_000),
        repeat(
            "a: b\r\n", "a:" + " " * 99 + "\r\n", "cookie: a=b\r\n", start="GET / HTTP/1.1\r\nhost: a\r\n", end="\r\n"
        ),
        20_000,
    ),
    "translate.caching.rendering:read_list": Reader(read_list, repeat("[", "1,", "{},", '"\\\\', start="[", end="1]")),
    "translate.caching.rendering:read_object": Reader(
        read_object, {**NESTED, **repeat('"a":{},', '"a":1,', start="{", end='"b":1}')}
    ),
    "translate.protocols.echo.build:read_request": Reader(
        read_echo_request,
        {**NESTED, **repeat('{"role":"user","parts":[]},', "1,", start='{"turns":[', end='1],"model":"m"}')},
    ),
    "translate.framing.fields:read_call_head": Reader(lambda body: read_call_head(body, needs_model=False), NESTED),
    "translate.framing.jsonread:decode_or": Reader(lambda body: decode_or(ANY_OBJECT, body, None), NESTED),
    "translate.framing.jsonread:parse_or": Reader(lambda body: parse_or(body, dict[str, object], None), NESTED),
    "translate.framing.jsonread:read_json": Reader(
        lambda body: read_json(ANY_OBJECT, body),
        {**NESTED, **repeat("\\ud800", "\\\\", "\\", start='{"a":"', end='"}')},
    ),
    "translate.framing.jsonread:read_json_leniently": Reader(
        lambda body: read_json_leniently(ANY_OBJECT, body, ("a",)),
        {**NESTED, **repeat("1,", start='{"a":[', end="1]}")},
    ),
    "translate.framing.jsonread:read_input_tokens": Reader(read_input_tokens, NESTED),
    "translate.framing.multipart:read_boundary": Reader(
        read_boundary, repeat("; a=b", '; a="', ";", "; boundary=", ' ;  "', " ", "\\", start="multipart/form-data")
    ),
    "translate.framing.error_text:clean_message": Reader(of_text(clean_message), repeat(*FAULTS, " ", "(")),
    "translate.framing.error_text:strip_html": Reader(strip_html, repeat("<script>", "<", "<style", "<script></")),
    "translate.hub.checksum:decode_checked": Reader(
        of_text(decode_checked),
        {"whole": lambda size: encode_checked(b"x" * size).encode(), **repeat("AAAA", "!", "=")},
    ),
    "translate.hub.opaque:decode_envelope": Reader(
        of_text(decode_envelope),
        {
            "whole": lambda size: encode_envelope(OPAQUE, "x" * size).encode(),
            **repeat("AAAA", "gqFh", start="dgm1."),
            **repeat("AAAA", start="dgm1.2."),
        },
    ),
    "translate.hub.opaque:unseal_thoughts": Reader(
        of_text(unseal_thoughts), {"whole": lambda size: seal_thoughts([Thought("hm", OPAQUE)] * (size // 20)).encode()}
    ),
    "translate.hub.server_tools:unseal_source": Reader(
        of_text(unseal_source),
        {"whole": lambda size: seal_source(SourceText("x" * size)).encode(), **repeat("AAAA", start="dgm1.source.")},
    ),
    "translate.hub.server_tools:read_sealed_use": Reader(
        of_text(lambda token: read_sealed_use(token, "")),
        {
            "whole": lambda size: seal_use(ToolUseRecord("web_fetch", {}, WebPage("", "", "x" * size))).encode(),
            **repeat("AAAA", start="dgm1.sourcerun."),
        },
    ),
    "translate.passes.server_tools:read_arguments": Reader(
        of_text(read_arguments), repeat("[", '{"a":', " ", '"', start="{")
    ),
    "translate.protocols.responses.state_items:open_compaction": Reader(
        of_text(open_compaction),
        {
            "whole": lambda size: seal_compaction(Compaction("x" * size, "m", "o")).encode(),
            **repeat("AAAA", start="dgm1.c."),
        },
    ),
    "translate.protocols.responses.state_items:read_input": Reader(
        of_json(read_input),
        {"items": write_json(lambda size: {"input": [{"role": "user", "content": "x"}] * size})},
    ),
    "translate.protocols.responses.state_items:read_metadata": Reader(
        of_json(read_metadata),
        {"pairs": write_json(lambda size: {"metadata": {f"k{at}": "v" for at in range(size)}})},
    ),
    "translate.protocols.messages.wire:decode_call_id": Reader(
        of_text(decode_call_id), repeat("_2", "_", "a", start="toolu_")
    ),
    "translate.protocols.messages.wire:decode_use_id": Reader(
        of_text(decode_use_id), repeat("_2", "_", "a", "1_", "x61", start="srvtoolu_1_0_0_")
    ),
    "translate.protocols.gemini.parse:read_call": Reader(
        of_text(lambda path: read_call(path, "", b"{}")),
        repeat("/models/", ":a", "/publishers/", "/models/a:", "/", "\n", start="/v1beta/models/", end="!"),
    ),
    "translate.protocols.gemini.parse_fields:read_json_schema": Reader(
        lambda data: read_json_schema(msgspec.json.decode(data)),
        {"properties": write_json(lambda size: {"properties": {f"p{at}": {"type": "STRING"} for at in range(size)}})},
    ),
    "translate.protocols.gemini.parse_fields:read_dialect": Reader(
        lambda data: read_dialect(msgspec.json.decode(data)),
        {"properties": write_json(lambda size: {"properties": {f"p{at}": {"nullable": True} for at in range(size)}})},
    ),
    "translate.protocols.relayed_paths:observe_document": Reader(
        observe_document, {**NESTED, **repeat('{"usage":1},', start='{"usage":[', end="1]}")}
    ),
    "translate.protocols.relayed_paths:EventStream": Reader(
        feed_events, repeat("data: {}\n\n", "data: x\n", "\n", "data: [DONE]\n\n")
    ),
    "translate.protocols.chat.errors:read_event_error": Reader(read_event_error, ERRORS),
    "translate.protocols.responses.errors:read_unusable": Reader(lambda body: read_unusable(body, "why"), ERRORS),
    **{
        f"translate.protocols.{name}.errors:read_failure": Reader(read_failures(name), ERRORS)
        for name in ("chat", "responses", "messages", "gemini", "kiro", "echo")
    },
    "proxy.complete_reply:FENCE": Reader(
        of_text(FENCE.match), repeat("```", "a", "```\n", "``` ", " ", "\n", start="```")
    ),
    "proxy.complete_reply:FENCE_IN_PROSE": Reader(of_text(FENCE_IN_PROSE.search), repeat("```a\n", "```", "\n", "a")),
    "upstreams.account_state:parse_reset": Reader(
        of_text(lambda text: parse_reset(text, 0.0)), repeat("9", "9m", "1d", "-")
    ),
    "upstreams.account_state:read_exhausted_until": Reader(
        of_headers(lambda headers: read_exhausted_until(headers, 0.0)),
        repeat("x-ratelimit-remaining: 0\n", "ratelimit-a-remaining: 0\n", "x-ratelimit-reset: 9\n"),
    ),
    "upstreams.codex.account:read_limits": Reader(
        of_headers(lambda headers: read_codex_limits(headers, 0.0)),
        {
            "limits": lambda size: b"".join(b"x-l%d-primary-used-percent: 9\n" % at for at in range(size // 30)),
            **repeat("x-a-primary-used-percent: 9\n", "-primary", "x-"),
        },
    ),
    "upstreams.codex.account:read_codex_exhausted_until": Reader(
        of_headers(lambda headers: read_codex_exhausted_until(headers, 0.0)), repeat("x-a-primary-used-percent: 100\n")
    ),
    "upstreams.codex.credential:read_claims": Reader(of_text(read_claims), repeat(".", "e30", "e30.", "=")),
    "upstreams.codex.credential:read_tokens": Reader(
        lambda body: read_codex_tokens(ServiceResponse(400, body)), ERRORS
    ),
    "upstreams.copilot.account:read_limits": Reader(
        of_headers(read_copilot_limits),
        repeat("x-quota-snapshot-chat: ent=9&rem=9\n", "x-quota-snapshot-chat: &\n", "&"),
    ),
    "upstreams.copilot.account:read_quotas": Reader(
        lambda body: read_quotas("copilot", ServiceResponse(200, body)),
        {
            "quotas": write_json(
                lambda size: {"quota_snapshots": {f"q{at}": {"entitlement": 1, "remaining": 1} for at in range(size)}}
            ),
            **NESTED,
        },
    ),
    "upstreams.credentials.credential:parse_timestamp": Reader(
        of_text(parse_timestamp), repeat("1", "T", "-", "Z", "0.")
    ),
    "upstreams.rejections.complaint:read_complaint": Reader(
        lambda body: find_rules(read_complaint(400, body), Sent("chat", b"{}", ())),
        {
            **ERRORS,
            "forbidden fields": write_json(
                lambda size: {"detail": [{"type": "extra_forbidden", "loc": ["body", f"f{at}"]} for at in range(size)]}
            ),
            **repeat("`a", "'a' ", '\\"', "\\n", "Extra inputs are not permitted", start='{"message":"', end='"}'),
        },
    ),
    "translate.protocols.gemini.encode_blocks:read_arguments": Reader(
        of_text(lambda text: read_call_arguments(CallBlock("id", "name"), text, "", Ledger())),
        repeat("[", '{"a":', " ", '"', start="{"),
    ),
    "upstreams.kiro.credential:parse_method": Reader(
        of_text(lambda name: parse_method(name, registered=False, external=False)), repeat("-", "a_")
    ),
    "upstreams.kiro.credential:read_tokens": Reader(lambda body: read_kiro_tokens(ServiceResponse(400, body)), ERRORS),
    "upstreams.kiro.services:read_region": Reader(of_text(read_region), repeat("-a", ":", "a", start="arn:aws")),
    "upstreams.models:parse_list": Reader(
        parse_list,
        {
            "models": write_json(lambda size: {"data": [{"id": f"m{at}"} for at in range(size)]}),
            "strange names": write_json(lambda size: {"data": [{"id": "[" * size}]}),
            **NESTED,
        },
    ),
}


def post_json(body: bytes) -> RoutedRequest:
    http = make_post("/api/v1/teams", [(b"content-type", b"application/json")], ByteBudget(1 << 40))
    http.set_body(body)
    return RoutedRequest(http, cast("ReplySink", None), "/api/v1/teams", "req", KeyId("key"))


def read_heads(data: bytes) -> None:
    unread = UnreadBytes()
    unread += data
    while unread.take_head(1 << 20) is not None:
        continue


def read_toml(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        describe_syntax_error("dragoman.toml", text, error)


READERS |= {
    "proxy.request_record:read_sender": Reader(
        of_headers(read_sender),
        {
            f"{name} {piece!r}": _repeat_one(piece.encode(), f"{name}: ", "")
            for name in ("x-dragoman-tags", "x-claude-code-session-id", "user-agent", "x-request-id", "traceparent")
            for piece in (",", "a,", "a=b,", "~ ", "/", "1/")
        },
        8_000,
    ),
    "proxy.run_headers:read_cursor": Reader(
        of_headers(read_cursor), repeat("run_", "9", "-", start="x-dragoman-resume: ")
    ),
    "server.console.gateway_rows:read_position": Reader(
        of_text(read_position), repeat(".", "a0b1c2d3-9.", "9", "a0b1c2d3-")
    ),
    "server.models:read_parameters": Reader(of_text(read_parameters), repeat("a=1&", "%", "&", "=", "%41")),
    "server.api.wire:_read_body": Reader(
        lambda body: asyncio.run(CREATE_TEAM.read_body(post_json(body))),
        {
            "a field": lambda size: msgspec.json.encode({" - at `$" * (size // 8) + "\n": 1}),
            "its words": lambda size: msgspec.json.encode({"Object contains unknown field `" * (size // 30) + "\n": 1}),
            "fields": write_json(lambda size: {f"f{at}": 1 for at in range(size)}),
            "one field": lambda size: b"{" + b'"models":[],' * (size // 12) + b'"models":[]}',
            **NESTED,
        },
    ),
    "server.console.site:_parse_sign_in": Reader(_parse_sign_in, {**NESTED, **repeat("a", start='{"key":"', end='"}')}),
    "server.responses:_read_cursor": Reader(
        of_text(lambda query: _read_cursor([*read_parameters(query).items()])), repeat("9", start="starting_after=")
    ),
    "translate.framing.numbers:parse_number": Reader(of_text(parse_number), repeat("0", "9"), 100_000),
    "state.service:read_page": Reader(
        of_text(lambda query: read_item_page([*read_parameters(query).items()])), repeat("9", "0", start="limit=")
    ),
    "state.context:read_context": Reader(
        of_json(lambda raw: asyncio.run(read_context(cast("OwnedResponses", None), raw))),
        {"items": write_json(lambda size: {"input": [{"type": "message", "role": "user", "content": "x"}] * size})},
    ),
    "proxy.failures:_parse_date": Reader(_parse_date, repeat("9", " ", ",", "Mon, ", "(", ":", "+")),
    "proxy.sessions:_read_session_fields": Reader(
        _read_session_fields, {**NESTED, **repeat('"user":"a",', start="{", end='"b":1}')}
    ),
    "net.bodies:ChunkedBody": Reader(
        lambda data: ChunkedBody(1 << 30, BudgetShare(ByteBudget(1 << 40))).feed(data),
        repeat("5\r\nhello\r\n", "1;a=b\r\nx\r\n", "a" * 64, start="5\r\nhello\r\n"),
        20_000,
    ),
    "net.request_head:UnreadBytes": Reader(
        lambda data: read_heads(data), repeat("\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n", "GET "), 20_000
    ),
    "server_tools.guarded_fetch:_decode_location": Reader(_decode_location, repeat(b"\xff", b"a", b"\xc3\xa4")),
    "server_tools.web_search:_read_brave": Reader(
        _read_brave,
        {"results": write_json(lambda size: {"web": {"results": [{"url": "u", "title": "t"}] * size}}), **NESTED},
    ),
    "operate.usage.request_filter:parse_filter": Reader(
        of_text(lambda text: parse_filter(text, datetime(2026, 1, 1, tzinfo=UTC), {})),
        repeat("a", "a:b ", ":", '"', "_", " ", start="key:"),
        200,
    ),
    "config.syntax:describe_syntax_error": Reader(
        of_text(read_toml),
        {**repeat("a", " ", "a b", "\t=", "=", ",", "[", end=" !\n"), **repeat("a.b", " ", start="x = ", end=" !\n")},
    ),
}


def find_readers() -> Iterator[str]:
    for package in PACKAGES:
        for file in sorted((SRC / package).rglob("*.py")):
            module = ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    name = node.name.removeprefix("_") if package in OWN_HELPERS else node.name
                    if name.startswith(READS):
                        yield f"{module}:{node.name}"


def test_every_reader_is_listed() -> None:
    found = set(find_readers())
    assert found - READERS.keys() - COVERED.keys() == set(), "add a case, or the reader that covers it"
    assert COVERED.keys() - found == set(), "these do not exist any more"
    assert {name: by for name, by in COVERED.items() if by not in {*READERS, *ELSEWHERE}} == {}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_linear_time(name: str) -> None:
    reader = READERS[name]

    def read(data: bytes) -> None:
        try:
            reader.read(data)
        except Exception:  # a refusal must not take long either
            return

    for kind, make in reader.inputs.items():
        try:
            assert_linear_function(read, make, reader.size)
        except AssertionError as slow:
            slow.add_note(f"input: {kind}")
            raise

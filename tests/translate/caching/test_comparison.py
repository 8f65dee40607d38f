"""Two captured requests of a session, compared: where they differ first, and why the cache had less."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
import pytest

from dragoman.translate.caching.comparison import CacheComparison, ReportedInput, compare_requests
from dragoman.translate.caching.request_pair import CapturedRequest
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from narrowing import present
from translate.caching.agent import prose
from wire_json import Json, JsonObject

MODEL = "claude-sonnet-5"
MARK: JsonObject = {"type": "ephemeral"}
Change = Callable[[JsonObject], object]
SECRET = "sk-ant-FAKE-0123456789abcdef0123456789abcdef"  # plainly fake


def text(words: str, **more: Json) -> JsonObject:
    return {"type": "text", "text": words, **more}


ENVIRONMENT = (
    "Today is 2026-11-18.\nRun 6f1c6a52-9a5e-4c11-8f51-0a5b6f0d7a11\nTrace 9f86d081884c7d65\n"
    "Folder /home/dev/one\nOn branch main\nEnd."
)


def first_request() -> JsonObject:
    """A session's first request of 2,000 tokens."""
    return {
        "model": MODEL,
        "max_tokens": 100,
        "tools": [
            {"name": "read", "description": "Read a file.", "input_schema": {"type": "object"}},
            {"name": "write", "description": "Write a file.", "input_schema": {"type": "object"}},
        ],
        "system": [
            text("x-anthropic-billing-header: cc_version=2.1.325.aaa;"),
            text(prose(8000, "rule"), cache_control=MARK),
            text(ENVIRONMENT),
        ],
        "thinking": {"type": "adaptive"},
        "messages": [
            {"role": "user", "content": [text("Read it.")]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "AAAA"},
                    {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a", "lines": 3}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "out", "cache_control": MARK}],
            },
        ],
    }


def next_request() -> JsonObject:
    body = first_request()
    body["messages"][-1]["content"][-1].pop("cache_control")
    body["messages"] += [
        {"role": "assistant", "content": [text("It says out.")]},
        {"role": "user", "content": [text("Thanks.", cache_control=MARK)]},
    ]
    return body


def make_request(request: JsonObject, more: Mapping[str, object] = MappingProxyType({})) -> CapturedRequest:
    encoded = msgspec.json.encode(request)
    fields: dict[str, object] = {
        "protocol": "messages",
        "provider": "anthropic",
        "model": MODEL,
        "account": "1 of 2",
        "key": "key_a",
        "started_at": 0.0,
        "body": encoded,
        "client_body": encoded,
        "is_passed": True,
    }
    chosen = {**fields, **more}
    upstream = present(PROTOCOLS[str(chosen.pop("protocol"))].upstream)
    return msgspec.convert(chosen | {"reader": upstream.prompts}, CapturedRequest)


def compare(
    change: Change,
    reported: ReportedInput | None = None,
    before: Change = lambda body: None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> CacheComparison:
    earlier, later = first_request(), next_request()
    before(earlier)
    change(later)
    known = reported or ReportedInput(2100, 0)
    sent = make_request(later, {"started_at": 10.0, **more})
    return compare_requests(make_request(earlier), sent, known, find_profile(sent.model))


def put(path: str, value: Json) -> Change:
    """Return a change that sets what a JSON pointer names; None removes it."""

    def change(body: JsonObject) -> None:
        *steps, last = path.strip("/").split("/")
        place: Json = body
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if isinstance(place, list):
            place[int(last)] = value
        elif value is None:
            place.pop(last)
        else:
            place[last] = value

    return change


def swap_tools(body: JsonObject) -> None:
    body["tools"].reverse()


def replace_in_environment(old: str, new: str) -> Change:
    return put("/system/2/text", ENVIRONMENT.replace(old, new))


def move_keys(body: JsonObject) -> None:
    block = body["messages"][1]["content"][1]
    block["input"] = {"lines": 3, "path": "a"}


def shorten(body: JsonObject) -> None:
    body["messages"][0]["content"] = [text("Summary so far.", cache_control=MARK)]
    del body["messages"][1:]


def add_image(body: JsonObject) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    body["messages"][-1]["content"].insert(0, {"type": "image", "source": source})


def unmark(body: JsonObject) -> None:
    body["system"][1].pop("cache_control", None)
    body["messages"][-1]["content"][-1].pop("cache_control", None)


def go_far(body: JsonObject) -> None:
    """Move the only mark further from the last one than the vendor looks."""
    body["system"][1].pop("cache_control")
    new = [{"role": ("user", "assistant")[number % 2], "content": [text(f"{number}")]} for number in range(21)]
    body["messages"] = [*body["messages"][:-1], *new, body["messages"][-1]]


def only_last_mark(body: JsonObject) -> None:
    body["system"][1].pop("cache_control")


NOTHING: Change = lambda body: None  # noqa: E731


@pytest.mark.parametrize(
    ("change", "more", "cause", "words", "path"),
    [
        (NOTHING, {"model": "claude-opus-5-5"}, "model", "claude-sonnet-5 before", None),
        (NOTHING, {"account": "2 of 2"}, "account", "another account", None),
        (NOTHING, {"key": "key_b"}, "key", "another client key", None),
        (NOTHING, {"started_at": 481.0}, "expired", "481 s after", None),
        (unmark, {}, "no_mark", "the later request has no mark", None),
        (swap_tools, {}, "tools", "another order", "/tools/0/name"),
        (put("/tools/1/name", "edit"), {}, "tools", "added: edit; removed: write", "/tools/1/name"),
        (put("/tools/1/input_schema/type", "array"), {}, "tools", "schema", "/tools/1/input_schema/type"),
        (put("/thinking", {"type": "disabled"}), {}, "settings", "thinking: ", "/thinking/type"),
        (put("/tool_choice", {"type": "any"}), {}, "settings", "tool_choice: null before", "/tool_choice"),
        (put("/system/0/text", "x-anthropic-billing-header: cc_version=2.1.325.bbb;"), {}, "billing_line", "vendor",
         "/system/0/text"),
        (replace_in_environment("11-18", "11-19"), {}, "date_or_time", "date", "/system/2/text"),
        (replace_in_environment("6f1c6a52", "7f1c6a52"), {}, "uuid", "uuid", "/system/2/text"),
        (replace_in_environment("9f86d081884c7d65", "9f86d081884c7d66"), {}, "hex_id", "hex", "/system/2/text"),
        (replace_in_environment("/home/dev/one", "/home/dev/two"), {}, "path", "path", "/system/2/text"),
        (replace_in_environment("branch main", "branch next"), {}, "git_status", "git", "/system/2/text"),
        (put("/messages/1/content/0/signature", "skip"), {}, "history_rewritten", "signature",
         "/messages/1/content/0/signature"),
        (put("/messages/2/content/0/content", "<tool_output_masked>"), {}, "history_rewritten", "masked",
         "/messages/2/content/0/content"),
        (shorten, {}, "history_rewritten", "shorter", "/messages/0/content/0/text"),
        (put("/messages/0/content", "Read it."), {}, "form", "another form", "/messages/0/content"),
        (move_keys, {}, "form", "order of keys", "/messages/1/content/1/input"),
        (add_image, {}, "image_added", "an image was added", None),
        (replace_in_environment("End.", "Stop."), {}, "system", "system prompt", "/system/2/text"),
        (put("/messages/0/content/0/text", "Go."), {}, "messages", "a message", "/messages/0/content/0/text"),
        (NOTHING, {}, "unknown", "continues", None),
    ],
)  # fmt: skip
def test_a_planted_difference_is_named(
    change: Change, more: dict[str, object], cause: str, words: str, path: str | None
) -> None:
    found = compare(change, more=more)
    assert (found.cause, None if found.difference is None else found.difference.upstream_path) == (cause, path)
    assert words in found.detail
    assert found.difference is None or found.difference.client_path == path


def test_a_short_request_is_below_the_minimum() -> None:
    found = compare(put("/system/1/text", "short"), ReportedInput(300, 0), put("/system/1/text", "short"))
    assert found.cause == "below_minimum"


def test_a_mark_too_far_from_what_was_written_misses() -> None:
    assert compare(go_far, before=only_last_mark).cause == "lookback"


def test_a_hit_needs_nine_tenths_of_what_could_be_read() -> None:
    found = compare(NOTHING, ReportedInput(2100, 2100))
    assert (found.cause, found.difference) == (None, None)
    assert 0.9 * 2100 < found.possible_tokens == found.tokens_before < 2100
    assert found.tokens_before + found.tokens_after == 2100
    assert compare(NOTHING, ReportedInput(2100, int(found.possible_tokens * 0.8))).cause == "unknown"


def test_the_first_byte_and_what_stands_around_it_are_shown() -> None:
    found = compare(replace_in_environment("11-18", "11-19"))
    assert found.difference is not None
    assert found.difference.earlier.startswith("Today is 2026-11-18.\nRun ")
    assert found.difference.later.startswith("Today is 2026-11-19.\nRun ")
    assert len(found.difference.later) <= 80
    assert found.difference.byte > 8000
    assert found.tokens_before > found.tokens_after > 0


@pytest.mark.parametrize("place", ["before", "across", "after"])
def test_secrets_are_masked_even_where_they_are_cut(place: str) -> None:
    old, new = {
        "before": (f"token {SECRET} then one", f"token {SECRET} then two"),
        "across": (f"token {SECRET}", f"token {SECRET[:-3]}zzz"),
        "after": (f"one {SECRET}", f"two {SECRET}"),
    }[place]
    found = compare(put("/system/2/text", new), before=put("/system/2/text", old))
    shown = msgspec.json.encode(found).decode()
    assert found.difference is not None
    assert SECRET not in shown
    assert "0123456789" not in shown


def test_what_the_gateway_built_is_found_in_the_client_s_body() -> None:
    client: JsonObject = {
        "model": MODEL,
        "reasoning_effort": "high",
        "tools": [{"type": "function", "function": {"name": "write", "parameters": {}}}],
        "messages": [
            {"role": "system", "content": ENVIRONMENT.replace("11-18", "11-19")},
            {"role": "user", "content": "Go."},
            {"role": "user", "content": [text("Go.")]},
        ],
    }
    built = msgspec.json.encode(client)

    def place_of(change: Change) -> str | None:
        found = compare(change, more={"client_body": built, "is_passed": False})
        return None if found.difference is None else found.difference.client_path

    assert place_of(replace_in_environment("11-18", "11-19")) == "/messages/0/content"
    assert place_of(put("/messages/0/content/0/text", "Go.")) == "/messages/1/content"
    assert place_of(put("/thinking", {"type": "disabled"})) == "/reasoning_effort"
    assert place_of(put("/tools/1/input_schema/type", "array")) == "/tools/0"
    assert place_of(put("/messages/0/content/0/text", "Nowhere in it.")) is None
    form = compare(put("/messages/0/content", "Read it."), more={"client_body": built, "is_passed": False})
    assert "gateway" in form.detail


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 1}', b'{"messages": [1, null]}', b"\xff"])
def test_a_body_that_cannot_be_read_is_unknown(body: bytes) -> None:
    broken = make_request(first_request(), {"body": body})
    found = compare_requests(broken, broken, ReportedInput(), find_profile(MODEL))
    assert (found.cause, found.difference) == ("unknown", None)


@pytest.mark.parametrize(
    ("protocol", "body", "path", "cause"),
    [
        ("chat", {"messages": [{"role": "system", "content": "X" * 9000}, {"role": "user", "content": "one"}]},
         "/messages/1/content", "messages"),
        ("responses", {"instructions": "X" * 9000, "input": [{"role": "user", "content": "one"}]}, "/input/0/content",
         "messages"),
        ("gemini", {"systemInstruction": {"parts": [{"text": "X" * 9000}]}, "contents": [{"parts": [{"text": "one"}]}]},
         "/contents/0/parts/0/text", "messages"),
    ],
)  # fmt: skip
def test_other_protocols_are_rendered_in_their_order(protocol: str, body: JsonObject, path: str, cause: str) -> None:
    later = msgspec.json.decode(msgspec.json.encode(body).replace(b"one", b"two"))
    earlier, other = (make_request(one, {"protocol": protocol, "model": "m"}) for one in (body, later))
    found = compare_requests(earlier, other, ReportedInput(2000, 0), find_profile("m"))
    assert found.difference is not None
    assert (found.cause, found.difference.upstream_path) == (cause, path)

"""Thought signatures of Gemini clients: envelopes of ours, values of Google's, and the documented placeholders."""

import base64

import msgspec
import pytest

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, Thought, seal_thoughts, unseal_thoughts
from dragoman.translate.hub.request import Foreign, Text, Thinking, ToolCall
from dragoman.translate.hub.server_tools import CallPlace, SearchFound, ServerToolUse, ToolUseRecord, seal_use
from dragoman.translate.protocols.gemini import PROTOCOL
from dragoman.translate.protocols.gemini.parse import parse
from wire_json import Json

SEAL = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2lnbmVk+/==", "claude")
ONE, TWO = Thought("First.", SEAL), Thought("", Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA", "gpt"))
PLAIN = Thought("Unsigned.")
CALL: Json = {"functionCall": {"id": "1", "name": "f"}}


def history(*contents: Json) -> list[object]:
    """Return the parts of the model's turn, without their places."""
    body = {"contents": [{"parts": [{"text": "x"}]}, *contents]}
    (_, turn) = parse(msgspec.json.encode(body), Ledger()).turns
    return [_plain(part) for part in turn.parts]


def _plain(part: object) -> object:
    match part:
        case Thinking():
            return Thought(part.text, part.opaque, part.raw)
        case Text():
            return part.text
        case ToolCall():
            return part.name
        case Foreign():
            return part.use
    return part


def model(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def as_python_sends(value: str) -> str:
    """Python decodes a signature and writes it again, in the URL-safe alphabet and padded."""
    standard = value.replace("-", "+").replace("_", "/")
    return base64.urlsafe_b64encode(base64.b64decode(standard)).decode()


@pytest.mark.parametrize("thoughts", [(ONE,), (ONE, TWO, PLAIN), (Thought("ü" * 50, SEAL),)])
def test_an_envelope_is_base64_and_is_recognised_by_its_bytes(thoughts: tuple[Thought, ...]) -> None:
    value = seal_thoughts(thoughts)
    assert base64.urlsafe_b64decode(value).startswith(b"dgm1.")
    assert PROTOCOL.client is not None
    assert f'"{value}"'.encode().startswith(PROTOCOL.client.envelope_start)
    for written in (value, as_python_sends(value), value.rstrip("="), value.replace("-", "+").replace("_", "/")):
        assert unseal_thoughts(written) == thoughts


@pytest.mark.parametrize("value", ["", "dgm1.abc", "c2lnbmVk", "!!!", "ZGdtMQ=="])
def test_another_value_is_no_envelope(value: str) -> None:
    assert unseal_thoughts(value) is None


def test_an_envelope_that_cannot_be_read_has_no_reasoning() -> None:
    assert unseal_thoughts(base64.urlsafe_b64encode(b"dgm1.\xff\xff").decode()) == ()


def test_the_reasoning_of_a_call_stood_before_the_text_of_its_step() -> None:
    sealed = {"thoughtSignature": seal_thoughts([ONE])}
    assert history(model({"text": "Look."}, {**CALL, **sealed})) == [ONE, "Look.", "f"]


def test_a_use_of_the_gateways_tool_stands_where_it_ran() -> None:
    record = ToolUseRecord("web_search", {"query": "x"}, SearchFound((), "Prose."), CallPlace("call-7", 1))
    use = Thought("", Opaque("", OpaqueForm.ENCRYPTED, seal_use(record)))
    sealed = {"thoughtSignature": seal_thoughts([ONE, use, TWO])}
    at = "/contents/1/parts/1/thoughtSignature"
    ran = ServerToolUse(at, "web_search", {"query": "x"}, record.outcome, is_ours=True, place=record.place)
    assert history(model({"text": "Look."}, {**CALL, **sealed})) == [ONE, "Look.", ran, TWO, "f"]
    assert history(model({"text": "Look."}, {"text": "So.", **sealed})) == ["Look.", ONE, ran, TWO, "So."]


def test_reasoning_that_text_and_call_both_carry_comes_once_and_in_its_place() -> None:
    first, both = seal_thoughts([ONE]), seal_thoughts([ONE, TWO])
    chunks = [
        model({"text": "Loo", "thoughtSignature": as_python_sends(first)}),
        model({"text": "k."}),
        model({**CALL, "thoughtSignature": both}),
        model({"text": ""}),
    ]
    assert history(*chunks) == [ONE, "Look.", TWO, "f"]


def test_shown_thoughts_give_way_to_the_envelope_that_holds_them() -> None:
    chunks = [model({"text": "Fir", "thought": True}), model({"text": "st.", "thought": True})]
    assert history(*chunks, model({**CALL, "thoughtSignature": seal_thoughts([ONE])})) == [ONE, "f"]


def test_shown_thoughts_without_an_envelope_are_kept_as_one() -> None:
    assert history(model({"text": "a", "thought": True}), model({"text": "b", "thought": True}), model(CALL)) == [
        Thought("ab"),
        "f",
    ]


def test_an_empty_part_that_only_carries_reasoning_stays() -> None:
    assert history(model({"text": "Done."}), model({"text": "", "thoughtSignature": seal_thoughts([ONE])})) == [
        "Done.",
        ONE,
    ]


def test_googles_own_signature_stays_exact_before_its_part() -> None:
    value = "Cq-_+/8="
    own = Opaque("gemini", OpaqueForm.SIGNATURE, value)
    assert history(model({"text": "t", "thought": True}), model({**CALL, "thoughtSignature": value})) == [
        Thought("t", own),
        "f",
    ]
    assert history(model({"text": "Hi.", "thoughtSignature": value})) == [Thought("", own), "Hi."]


@pytest.mark.parametrize("dummy", ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"])
def test_a_placeholder_is_no_signature(dummy: str) -> None:
    assert history(model({**CALL, "thoughtSignature": dummy})) == ["f"]
    encoded = base64.b64encode(dummy.encode()).decode()
    assert history(model({**CALL, "thoughtSignature": encoded})) == ["f"]

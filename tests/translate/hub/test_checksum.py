"""Values that clients keep: any change to one is noticed, and those without a checksum stay readable."""

import base64
from collections.abc import Callable

import msgspec
import pytest

from dragoman.translate.hub.opaque import (
    UNSIGNED,
    Opaque,
    OpaqueForm,
    Thought,
    decode_envelope,
    encode_envelope,
    is_signature,
    seal_thoughts,
    unseal_thoughts,
)
from dragoman.translate.hub.server_tools import SourceText, seal_source, unseal_source
from dragoman.translate.protocols.responses.state_items import Compaction, open_compaction, seal_compaction

OPAQUE = Opaque("up", OpaqueForm.SIGNATURE, "c2lnbmVk", "m", "the user wants …")
COMPACTION = Compaction("the user wants 42", "m", "digest")
SOURCE = SourceText("Text of one.", "2026-01-02")
THOUGHTS = (Thought("hm", OPAQUE),)


def to_text(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


SEALED: dict[str, tuple[str, str, Callable[[str], object], object]] = {
    # how it is written now, as it was written without a checksum, how it is read, what is read
    "reasoning": (
        encode_envelope(OPAQUE),
        "dgm1." + to_text(msgspec.msgpack.encode(OPAQUE)),
        decode_envelope,
        OPAQUE,
    ),
    "reasoning of a Gemini client": (
        seal_thoughts(THOUGHTS),
        base64.urlsafe_b64encode(b"dgm1." + msgspec.msgpack.encode(THOUGHTS)).decode(),
        unseal_thoughts,
        THOUGHTS,
    ),
    "compaction": (
        seal_compaction(COMPACTION),
        "dgm1.c." + to_text(msgspec.msgpack.encode(COMPACTION)),
        open_compaction,
        COMPACTION,
    ),
    "source": (
        seal_source(SOURCE),
        "dgm1.source." + to_text(msgspec.json.encode(SOURCE)),
        unseal_source,
        SOURCE,
    ),
}
kinds = pytest.mark.parametrize("kind", SEALED)


@kinds
def test_a_value_is_read_back_also_one_without_a_checksum(kind: str) -> None:
    written, earlier, read, content = SEALED[kind]
    assert read(written) == content
    assert read(earlier) == content


@kinds
def test_no_value_with_a_changed_or_missing_character_is_read(kind: str) -> None:
    written, _, read, _ = SEALED[kind]
    for place in range(len(written.rstrip("="))):
        for other in {"A", "z", "_"} - {written[place]}:
            assert not read(written[:place] + other + written[place + 1 :]), (place, other)
        assert not read(written[:place] + written[place + 1 :]), place


def test_reasoning_without_a_signature_is_recognised_also_as_it_was_written_before() -> None:
    earlier = "dgm1." + to_text(msgspec.msgpack.encode(Opaque("", OpaqueForm.SIGNATURE, "")))
    assert [is_signature(value) for value in (None, "", UNSIGNED, earlier)] == [False] * 4
    assert is_signature("c2lnbmVk")
    assert is_signature(encode_envelope(OPAQUE))

"""The committed compatibility page and the console's losses show exactly what the tests prove."""

import os

from e2e.cases import BROKEN, CASES, PHOTO, PICTURE, pictures_in, request_for, request_with_pictures
from e2e.proof import CAPABILITIES, CONSOLE_LOSSES, IMAGES, NO_END, PAGE, PAIRS, Cell, console_losses, page
from e2e.test_matrix import make_stream_answer, whole
from rig import Rig
from scripting.replies import Stop
from sdk_replies import STOPS, Broke, Halted, SdkReply
from sdk_replies_gemini import STREAMS, WHOLE, expect_for


def find_faults(rig: Rig, client: str, upstream: str, capability: str) -> list[object]:
    """Return what is wrong with one cell: a reply, whole or streamed, or the pictures in a request."""
    model = rig.model(upstream)
    if capability in BROKEN:
        rig.play(upstream, make_stream_answer(upstream, BROKEN[capability], "in one piece"))
        reply = STREAMS[client][0](rig.sdk, request_for(client, model))
        if (upstream, capability) == ("kiro", NO_END):  # it has no terminator: such a reply counts as cut
            ended = isinstance(reply, SdkReply | Halted) and reply.stop == STOPS[client][Stop.CAP]
            return [] if ended else [reply]
        return [] if isinstance(reply, Broke) else [reply]
    case = CASES["text" if capability == IMAGES else capability]
    request = request_for(client, model, case)
    if capability == IMAGES:
        request = request_with_pictures(client, model, upstream)
    expected = expect_for(client, upstream, case.scripted)
    faults: list[object] = []
    rig.play(upstream, make_stream_answer(upstream, case.scripted, "in one piece"))
    reply = STREAMS[client][0](rig.sdk, request)
    if reply != (Halted(expected.text, expected.stop) if isinstance(reply, Halted) else expected):
        faults.append((reply, "is not", expected))
    sent = rig.calls(upstream)
    rig.play(upstream, whole(upstream, case.scripted))
    if (reply := WHOLE[client](rig.sdk, request)) != expected:
        faults.append((reply, "is not", expected))
    if capability == IMAGES:
        found = [pictures_in(upstream, call.json) for call in (*sent, *rig.calls(upstream))]
        faults += [
            pictures for pictures in found if pictures != ([PICTURE] if upstream == "kiro" else [PICTURE, PHOTO])
        ]
    return faults


def test_the_compatibility_page_is_what_was_proved(matrix: Rig) -> None:
    cells: list[Cell] = [(*pair, capability) for pair in PAIRS for capability in CAPABILITIES]
    faults = {cell: found for cell in cells if (found := find_faults(matrix, *cell))}
    assert faults == {}
    written = page()
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(written)
        CONSOLE_LOSSES.write_text(console_losses())
    assert PAGE.read_text() == written, "docs/compatibility.md is stale: run `make matrix`"
    assert CONSOLE_LOSSES.read_text() == console_losses(), "losses.json is stale: run `make matrix`"


def test_what_the_gateway_stores_itself_is_not_listed_as_refused() -> None:
    refused = {line for line in page().splitlines() if "| refused |" in line}
    for field in ("/background", "/conversation", "/previous_response_id"):
        assert not [line for line in refused if field in line]
    assert "stored item" not in "".join(refused)

"""The committed compatibility page and the console's losses show exactly what the tests prove."""

import os

from e2e.cases import BROKEN, CASES, PHOTO, PICTURE, pictures_in, request_for, request_with_pictures
from e2e.proof import CAPABILITIES, CONSOLE_LOSSES, IMAGES, PAGE, PAIRS, PROVEN, Cell, console_losses, page
from e2e.test_matrix import make_stream_answer, whole
from rig import Rig
from sdk_replies import Broke, Halted
from sdk_replies_gemini import STREAMS, WHOLE, expect_for


def prove(rig: Rig, client: str, upstream: str, capability: str) -> bool:
    """The short proof of one cell, for runs without the matrix itself."""
    model = rig.model(upstream)
    if capability in BROKEN:
        rig.play(upstream, make_stream_answer(upstream, BROKEN[capability], "in one piece"))
        return isinstance(STREAMS[client][0](rig.sdk, request_for(client, model)), Broke)
    case = CASES["text" if capability == IMAGES else capability]
    request = request_with_pictures(client, model) if capability == IMAGES else request_for(client, model, case)
    expected = expect_for(client, upstream, case.scripted)
    fake = rig.play(upstream, make_stream_answer(upstream, case.scripted, "in one piece"))
    reply = STREAMS[client][0](rig.sdk, request)
    right = reply == (Halted(expected.text, expected.stop) if isinstance(reply, Halted) else expected)
    if capability == IMAGES:
        right = right and pictures_in(upstream, fake.calls[-1].json) == [PICTURE, PHOTO]
    rig.play(upstream, whole(upstream, case.scripted))
    return right and WHOLE[client](rig.sdk, request) == expected


def test_the_compatibility_page_is_what_was_proved(rig: Rig) -> None:
    cells: list[Cell] = [(*pair, capability) for pair in PAIRS for capability in CAPABILITIES]
    proven = {cell: PROVEN[cell] if cell in PROVEN else prove(rig, *cell) for cell in cells}
    written = page(proven)
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(written)
        CONSOLE_LOSSES.write_text(console_losses())
    assert all(proven.values())
    assert PAGE.read_text() == written, "docs/compatibility.md is stale: run `make matrix`"
    assert CONSOLE_LOSSES.read_text() == console_losses(), "losses.json is stale: run `make matrix`"

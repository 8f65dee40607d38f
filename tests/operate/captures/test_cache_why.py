"""Why a prompt cache had less: from two captures where there is no store, and what is not known is said."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.config.settings import Debug
from dragoman.operate import NotFound
from dragoman.operate.captures.cache_why import UNKNOWN, explain_cache
from dragoman.proxy.capture.files import capture_directory, read_capture
from dragoman.proxy.capture.format import Capture

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"


@pytest.fixture
def debug(tmp_path: Path) -> Debug:
    return Debug(directory=tmp_path / "captures")


def keep(debug: Debug, *names: str) -> None:
    whole: Capture = read_capture(FIXTURE.read_bytes())
    for number, name in enumerate(names):
        kept = replace(whole, request_id=name, time=f"2026-11-15T12:00:0{number}.000Z", cut_calls=())
        capture_directory(debug).write(kept)


async def test_a_request_without_an_earlier_one_is_not_explained(debug: Debug) -> None:
    keep(debug, "req_one")
    found = await explain_cache(None, debug, "last", None)
    assert (found.request_id, found.against, found.source, found.verdict) == ("req_one", None, "row", UNKNOWN)
    assert found.remedy


async def test_the_capture_before_it_of_the_session_is_compared(debug: Debug) -> None:
    keep(debug, "req_one", "req_two", "req_three")
    assert (await explain_cache(None, debug, "last", None)).against == "req_two"
    named = await explain_cache(None, debug, "three", "req_one")
    assert (named.request_id, named.against) == ("req_three", "req_one")


async def test_what_was_not_kept_is_not_found(debug: Debug) -> None:
    keep(debug, "req_one")
    for which, against in (("req_9", None), ("req_one", "req_9")):
        with pytest.raises(NotFound, match="req_9"):
            await explain_cache(None, debug, which, against)

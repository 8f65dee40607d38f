"""The running gateway is asked first; if it does not answer, captures and store are read, and it is said why."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import NotFound
from dragoman.operate.captures.cache_request import ask_why
from dragoman.operate.captures.cache_why import CacheExplanation
from dragoman.proxy.capture.files import capture_directory, read_capture
from fakes.service import json_answer
from fakes.upstream import FakeUpstream

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"
ANSWER = CacheExplanation(
    verdict="hit",
    request_id="a/b",
    against=None,
    source="row",
    route="up/m",
    session="",
    cause=None,
    detail="",
    remedy="",
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return settings whose directory of captures has one, and whose store does not exist."""
    file = tmp_path / "command.toml"
    file.write_text(f'[debug]\ndirectory = "{tmp_path}/captures"\n[store]\nurl = "sqlite:///{tmp_path}/absent.db"\n')
    made = ConfigSource(str(file), {}, tmp_path, tmp_path).read()
    capture_directory(made.debug).write(read_capture(FIXTURE.read_bytes()))
    return made


async def test_the_gateway_answers_by_its_path(config: Config) -> None:
    with FakeUpstream() as gateway:
        gateway.intercept = lambda request: json_answer(ANSWER)
        root = f"http://127.0.0.1:{gateway.port}"
        assert await ask_why(config, root, "dgm_fake", ("a/b", "c d")) == (ANSWER, "")
    assert [request.path for request in gateway.requests] == ["/api/v1/requests/a%2Fb/cache?against=c%20d"]


async def test_what_the_gateway_does_not_know_is_not_looked_for_elsewhere(config: Config) -> None:
    with FakeUpstream() as gateway:
        gateway.intercept = lambda request: json_answer({"error": {"message": "no such request"}}, 404)
        with pytest.raises(NotFound, match="no such request"):
            await ask_why(config, f"http://127.0.0.1:{gateway.port}", "dgm_fake", ("last", None))


async def test_a_gateway_that_fails_is_named_and_the_captures_are_read(config: Config) -> None:
    with FakeUpstream() as gateway:
        gateway.intercept = lambda request: json_answer({"error": {"message": "broken"}}, 500)
        found, problem = await ask_why(config, f"http://127.0.0.1:{gateway.port}", "dgm_fake", ("last", None))
    assert found.request_id == read_capture(FIXTURE.read_bytes()).request_id
    assert "broken" in problem


async def test_without_a_gateway_there_is_no_problem(config: Config) -> None:
    found, problem = await ask_why(config, None, None, ("last", None))
    assert (found.request_id, problem) == (read_capture(FIXTURE.read_bytes()).request_id, "")

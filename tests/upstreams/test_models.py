"""Models: those of a provider are assumed, fetched once, cached and fetched again; profiles are found by name."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import ListedModel
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.models import CachedCatalogue, fill_limits, parse_list
from dragoman.upstreams.provider import Catalogue, ModelInfo
from proxy.in_memory import make_provider
from waiting import wait_until_async

ASSUMED = (ModelInfo("assumed"),)
LISTED = (ModelInfo("listed"), ModelInfo("configured", "from the provider"))
CONFIGURED = (ModelInfo("configured"),)


class Lister:
    """Lists models after a moment, or refuses; counts its requests."""

    def __init__(self, refuses: bool = False) -> None:
        self.requests = 0
        self.refuses = refuses

    async def __call__(self) -> tuple[ModelInfo, ...]:
        self.requests += 1
        await asyncio.sleep(0.01)
        if self.refuses:
            raise RequestError(Failure(Kind.OVERLOADED, "later"))
        return LISTED


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def catalogue(lister: Lister, clock: Callable[[], float], models: tuple[ModelInfo, ...] = ()) -> CachedCatalogue:
    listed = Catalogue(models=models, fallback_models=ASSUMED, list_models=lister)
    return CachedCatalogue(make_provider("fake", ("kiro",), catalogue=listed), clock)


def ids(models: tuple[ModelInfo, ...]) -> list[str]:
    return [model.id for model in models]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def run_bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(run_bounded())


async def test_listed_models_replace_assumed_ones() -> None:
    models = catalogue(Lister(), FakeClock())
    assert ids(models.list_known()) == ["assumed"]
    assert not models.complete
    assert ids(await models.wait_for_list()) == ["listed", "configured"]
    assert models.complete


async def test_callers_during_the_first_fetch_wait_for_its_result() -> None:
    lister = Lister()
    models = catalogue(lister, FakeClock())
    models.list_known()  # as the gateway does when it starts
    found = await asyncio.gather(*(models.wait_for_list() for _ in range(10)))
    assert [ids(one) for one in found] == [["listed", "configured"]] * 10
    assert lister.requests == 1


async def test_a_stale_list_is_fetched_again_and_served_meanwhile() -> None:
    lister, hour = Lister(), FakeClock()
    models = catalogue(lister, hour)
    await models.wait_for_list()
    hour.now = 3599
    models.list_known()
    assert lister.requests == 1
    hour.now = 3601
    assert ids(models.list_known()) == ["listed", "configured"]
    await wait_until_async(lambda: lister.requests == 2)
    assert lister.requests == 2


async def test_a_provider_that_cannot_be_listed_keeps_its_fallback_models() -> None:
    lister, hour = Lister(refuses=True), FakeClock()
    models = catalogue(lister, hour, CONFIGURED)
    assert ids(await models.wait_for_list()) == ["configured", "assumed"]
    hour.now = 29
    models.list_known()
    assert lister.requests == 1
    hour.now, lister.refuses = 31, False
    await wait_until_async(lambda: ids(models.list_known()) == ["listed", "configured"])
    assert models.list_known()[1].name == "from the provider"
    assert lister.requests == 2


def test_what_anthropics_list_says_of_a_model_is_passed_on() -> None:
    thinks = {"thinking": {"supported": True}}
    entry = {"id": "claude-x", "created_at": "2026-01-02T03:04:05Z", "capabilities": thinks, "max_tokens": 64_000}
    [model] = parse_list(msgspec.json.encode({"data": [entry]}))
    assert (model.created, model.capabilities, model.max_output) == (1_767_323_045, thinks, 64_000)
    for wrong in ("tomorrow", 7, None):
        [model] = parse_list(msgspec.json.encode({"data": [{"id": "a", "created_at": wrong, "capabilities": wrong}]}))
        assert (model.created, model.capabilities) == (0, None)


@pytest.mark.parametrize(
    ("created", "seconds"),
    [
        (1_767_323_045, 1_767_323_045),
        (1_767_323_045_123, 1_767_323_045),  # milliseconds
        (1e30, 0),
        (10**30, 0),
        (-1, 0),
        ("0001-01-01T00:00:00+23:59", 0),
    ],
)
def test_when_a_model_was_made_is_a_date_that_every_client_can_be_given(created: object, seconds: int) -> None:
    field = "created_at" if isinstance(created, str) else "created"
    [model] = parse_list(json.dumps({"data": [{"id": "a", field: created}]}).encode())
    assert model.created == seconds
    models = PROTOCOLS["messages"].models
    assert models is not None
    listed = models.render([ListedModel("a", created=model.created)], {})
    assert json.loads(listed)["data"][0]["created_at"].endswith("Z")


def test_a_limit_that_its_server_does_not_report_is_that_of_the_known_model() -> None:
    model = fill_limits(ModelInfo("claude-opus-5-5"), None)
    assert (model.max_input, model.max_output) == (1_000_000, 128_000)
    assert fill_limits(replace(model, max_output=5), None).max_output == 5

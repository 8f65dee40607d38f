"""A provider's models: assumed, fetched once, cached, and fetched again."""

import asyncio
from collections.abc import Awaitable, Callable

from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.client import ConnectionLost, DialOptions, OutgoingRequest
from dragoman.net.headers import Header
from dragoman.providers.models import CachedCatalogue
from dragoman.providers.provider import Auth, Catalogue, Endpoint, IncomingResponse, ModelInfo, Provider

ASSUMED = (ModelInfo("assumed"),)
LISTED = (ModelInfo("listed"), ModelInfo("configured", "from the provider"))
CONFIGURED = (ModelInfo("configured"),)


async def send_nothing(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
    raise ConnectionLost("connection refused", sent=False, received=False)


async def authorize_nothing(protocol: str) -> tuple[Header, ...]:
    return ()


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
    provider = Provider(
        "fake",
        "kiro",
        "fake",
        Endpoint("http://127.0.0.1:9", ("kiro",), send_nothing),
        Auth(authorize_nothing),
        Catalogue(models=models, fallback_models=ASSUMED, list_models=lister),
    )
    return CachedCatalogue(provider, clock)


def ids(models: tuple[ModelInfo, ...]) -> list[str]:
    return [model.id for model in models]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


def test_listed_models_replace_assumed_ones() -> None:
    async def work() -> None:
        models = catalogue(Lister(), FakeClock())
        assert ids(models.list_known()) == ["assumed"]
        assert not models.complete
        assert ids(await models.wait_for_list()) == ["listed", "configured"]
        assert models.complete

    run(work)


def test_callers_during_the_first_fetch_wait_for_its_result() -> None:
    lister = Lister()

    async def work() -> None:
        models = catalogue(lister, FakeClock())
        models.list_known()  # as the gateway does when it starts
        found = await asyncio.gather(*(models.wait_for_list() for _ in range(10)))
        assert [ids(one) for one in found] == [["listed", "configured"]] * 10

    run(work)
    assert lister.requests == 1


def test_a_stale_list_is_fetched_again_and_served_meanwhile() -> None:
    lister, hour = Lister(), FakeClock()

    async def work() -> None:
        models = catalogue(lister, hour)
        await models.wait_for_list()
        hour.now = 3599
        models.list_known()
        assert lister.requests == 1
        hour.now = 3601
        assert ids(models.list_known()) == ["listed", "configured"]
        await asyncio.sleep(0.05)

    run(work)
    assert lister.requests == 2


def test_a_provider_that_cannot_be_listed_keeps_its_fallback_models() -> None:
    lister, hour = Lister(refuses=True), FakeClock()

    async def work() -> None:
        models = catalogue(lister, hour, CONFIGURED)
        assert ids(await models.wait_for_list()) == ["configured", "assumed"]
        hour.now = 29
        models.list_known()
        assert lister.requests == 1
        hour.now, lister.refuses = 31, False
        models.list_known()
        await asyncio.sleep(0.05)
        assert ids(models.list_known()) == ["listed", "configured"]
        assert models.list_known()[1].name == "from the provider"

    run(work)
    assert lister.requests == 2

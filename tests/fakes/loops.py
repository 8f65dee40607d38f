"""Run an async test on asyncio's and on uvloop's event loop, and fail it for tasks and errors left behind."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from dragoman.net.client import HttpClient

FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


Test = Callable[..., Coroutine[None, None, None]]


def on_both_loops(test: Test) -> Callable[..., None]:
    """Run the test on each loop; an error that only the loop sees, or a task left over, fails it."""
    marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", FACTORIES)(make_synchronous(test))
    return marked


def on_uvloop_first(test: Test) -> Callable[..., None]:
    """Run the test on each loop, but in `make test` only on that of the gateway: for tests that take their time."""
    kinds = ["uvloop", pytest.param("asyncio", marks=pytest.mark.rest)]
    marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", kinds)(make_synchronous(test))
    return marked


def make_synchronous(test: Test) -> Callable[..., None]:
    """Return the test with its loop as a parameter; a parameter `client` is filled with one that is closed after it."""

    def run(loop_kind: str, **given: object) -> None:
        unheard: list[dict[str, object]] = []
        with asyncio.Runner(loop_factory=FACTORIES[loop_kind]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: unheard.append(context))
            runner.run(_run_bounded(test, given))
        assert unheard == [], unheard

    functools.update_wrapper(run, test)
    own = inspect.signature(test)
    loop_kind = inspect.Parameter("loop_kind", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [parameter for parameter in own.parameters.values() if parameter.name != "client"]
    signature = own.replace(parameters=[*parameters, loop_kind], return_annotation=None)
    setattr(run, "__signature__", signature)  # noqa: B010 - pytest reads the parameters there; functions declare no such attribute
    return run


async def _run_bounded(test: Test, given: dict[str, object]) -> None:
    async with asyncio.timeout(120):
        if "client" in inspect.signature(test).parameters:
            client = HttpClient()
            await test(client=client, **given)
            await client.close()
        else:
            await test(**given)
        for _ in range(1000):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"tasks left over: {left}")

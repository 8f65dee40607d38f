"""How tests of the transports run a scenario; the fixture `play` gives one such function per event loop."""

from collections.abc import Callable, Coroutine

Scenario = Coroutine[object, object, None]
Play = Callable[[Scenario], None]

"""What a step between two upstream turns gets and returns."""

from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from dragoman.proxy.call import Call
from dragoman.proxy.ports import LostCallMemory


class CallScope(Struct, frozen=True):
    """The call that a step is part of."""

    call: Call
    memory: LostCallMemory
    at_end: list[Callable[[], None]]  # called when the call is over, however it ends


class Then(Enum):
    """What follows a step."""

    FINISH = "the reply is complete"
    NEXT_ROUND = "the same upstream continues the reply"
    TRY_AGAIN = "the same target is tried again"

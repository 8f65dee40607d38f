"""What is remembered from one call to the next."""

from msgspec import Struct

from dragoman.proxy.ports import LostCallMemory, PromptMemory, ReasoningMemory
from dragoman.proxy.prompt_caching import ProcessMemory
from dragoman.proxy.rejected_reasoning import ProcessReasoning
from dragoman.state.lost_calls import LostCalls
from dragoman.store import Store


class Memories(Struct, frozen=True):
    lost_calls: LostCallMemory
    prompts: PromptMemory
    reasoning: ReasoningMemory


def make_memories(store: Store | None) -> Memories:
    """Return memories of this process; other processes on the store know its lost calls too."""
    return Memories(LostCalls(store), ProcessMemory(), ProcessReasoning())

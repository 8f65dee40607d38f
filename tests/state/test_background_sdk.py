"""Background responses as openai-python uses them: poll, follow, come back, cancel."""

import threading
import time
from collections.abc import Iterator

import openai
import pytest
from openai.types.responses import Response, ResponseCompletedEvent, ResponseCreatedEvent, ResponseStreamEvent

from fakes.upstream import Gate
from scripting import write_reply
from state.state_rig import BACKGROUND_SETTINGS, HELLO, StateRig, endless, state_rigged

WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("background-sdk"), BACKGROUND_SETTINGS) as shared:
        yield shared


def poll(rig: StateRig, response: Response) -> Response:
    """Poll as OpenAI's guide shows it."""
    deadline = time.monotonic() + 60
    while response.status in {"queued", "in_progress"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        response = rig.openai.responses.retrieve(response.id)
    return response


def test_a_response_is_polled_until_it_is_completed(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    queued = rig.openai.responses.create(model="chat/m", input="Hi", background=True)
    assert (queued.status, queued.background, queued.output_text) == ("queued", True, "")
    ended = poll(rig, queued)
    assert (ended.status, ended.output_text, ended.id) == ("completed", "Hello Ada.", queued.id)
    assert ended.usage is not None


def test_a_stream_is_left_and_resumed_with_starting_after(rig: StateRig) -> None:
    has_left = threading.Event()
    rig.play("chat", write_reply("chat", WORDS, cut=200, gate=Gate(has_left, at=4000)))
    events: list[ResponseStreamEvent] = []
    id, cursor = "", -1
    with rig.openai.responses.create(model="chat/m", input="Hi", background=True, stream=True) as stream:
        for event in stream:
            events.append(event)
            cursor = event.sequence_number
            if isinstance(event, ResponseCreatedEvent):
                id = event.response.id
            if cursor == 9:
                break
    has_left.set()
    rest = rig.openai.responses.retrieve(id, stream=True, starting_after=cursor)
    events += list(rest)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert isinstance(last, ResponseCompletedEvent)
    assert last.response.output_text == WORDS
    assert rig.openai.responses.retrieve(id).output_text == WORDS
    assert len(rig.calls("chat")) == 1


def test_the_stream_helper_follows_a_response_by_its_id(rig: StateRig) -> None:
    has_left = threading.Event()
    rig.play("chat", write_reply("chat", WORDS, cut=200, gate=Gate(has_left, at=4000)))
    stream = rig.openai.responses.create(model="chat/m", input="Hi", background=True, stream=True)
    created = next(iter(stream))
    assert isinstance(created, ResponseCreatedEvent)
    stream.close()
    has_left.set()
    with rig.openai.responses.stream(response_id=created.response.id, starting_after=3) as followed:
        numbers = [event.sequence_number for event in followed]
        assert numbers == list(range(4, 4 + len(numbers)))
        assert followed.get_final_response().output_text == WORDS


def test_a_response_is_cancelled_and_stays_so(rig: StateRig) -> None:
    rig.fakes["chat"].answers = [endless()]
    queued = rig.openai.responses.create(model="chat/m", input="Hi", background=True)
    cancelled = rig.openai.responses.cancel(queued.id)
    assert (cancelled.id, cancelled.status) == (queued.id, "cancelled")
    assert poll(rig, queued).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        rig.openai.responses.retrieve(queued.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        rig.clients["bob"].responses.cancel(queued.id)

"""`python -m bench.resume` in small: clients drop at a random byte, resume, and miss nothing."""

import asyncio
from random import Random

import pytest
from bench.resume.__main__ import run_clients
from bench.resume.clients import WAYS
from bench.resume.replies import SIGNS, add_signs, make_reply, whole_part, without_signs


@pytest.mark.rest
@pytest.mark.parametrize("replicas", [1, 3])
def test_forty_clients_that_drop_and_resume_have_every_byte_and_each_is_paid_for_once(replicas: int) -> None:
    rows, problems = asyncio.run(run_clients(40, 7, replicas))
    assert problems == []
    assert {(name, row.clients, row.calls, row.wrong) for name, row in rows.items()} == {
        (way.name, 4, 4, 0) for way in WAYS
    }
    assert sum(row.drops for row in rows.values()) > 40


@pytest.mark.parametrize("protocol", SIGNS)
def test_a_client_counts_events_and_leaves_out_signs_of_life(protocol: str) -> None:
    events = make_reply(protocol, 3)
    body = b"".join(add_signs(protocol, events, Random(1)))
    assert without_signs(body) == b"".join(events)
    assert whole_part(protocol, b"".join(events[:5]) + events[5][:-1]) == (5, b"".join(events[:5]))

"""Several keys of one provider: which one is used, which cool down and how long, and what the client sees of it."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import pytest

from asking import Reply, ask, send
from dragoman.proxy.outcome import FailedAttempt, Outcome
from dragoman.upstreams.credentials.pool import MemberState
from e2e.pool_rig import PoolRig, keys_of, make_section, run_pool
from fakes.upstream import Answer, ReceivedRequest
from gateway import running
from rig import QUICK
from scripting import write_error

ONE, TWO = keys_of(2)
LIMITED = write_error(429, "Slow down.", "rate_limit_exceeded")
UNTIMED = write_error(429, "Slow down.", "rate_limit_exceeded", x_should_retry="true")
REVOKED = write_error(401, "Incorrect API key provided.", "invalid_api_key")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[PoolRig]:
    with run_pool(tmp_path) as own:
        yield own


def chat(rig: PoolRig, *reply_text: str, stream: bool = False) -> Outcome:
    """One turn of a conversation that began with these words."""
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(reply_text or ("Hi",))]
    answer = ask(rig.gateway, "chat", "up/gpt-4.1", stream=stream, messages=messages)
    assert answer.status == 200, answer.body
    assert answer.headers["x-dragoman-route"] == "up/gpt-4.1"
    assert b"Hello" in answer.body
    return rig.gateway.outcome(answer.headers["x-request-id"])


def expect_error(rig: PoolRig) -> Reply:
    """Return the error of a new conversation."""
    answer = ask(rig.gateway, "chat", "up/gpt-4.1")
    assert answer.status >= 400, answer.body
    return answer


def find_opening(rig: PoolRig, key: str) -> str:
    """Return the first message of a new conversation that goes to that key."""
    for number in range(64):
        chat(rig, f"conversation {number}")
        if rig.keyed.take_used() == [key]:
            return f"conversation {number}"
    raise AssertionError(f"none of 64 conversations falls to {key}")


def test_a_conversation_keeps_its_key_over_all_turns(rig: PoolRig) -> None:
    for number in range(4):
        opening = f"conversation {number}"
        chat(rig, opening)
        (home,) = rig.keyed.take_used()
        for turn in range(1, 4):
            chat(rig, opening, *(["Hello", "Go on"] * turn), stream=turn % 2 == 0)
        assert rig.keyed.take_used() == [home] * 3


def test_conversations_are_spread_over_the_keys(tmp_path: Path) -> None:
    with run_pool(tmp_path, keys=keys_of(3)) as rig:
        for number in range(60):
            chat(rig, f"conversation {number}")
        counts = Counter(rig.keyed.take_used())
    assert set(counts) == set(keys_of(3))
    assert min(counts.values()) >= 5


def test_a_clients_own_session_id_is_used_and_a_users_id_is_none(tmp_path: Path) -> None:
    """The text changes, but a session that compacts its history stays where its cache is."""
    rows: list[tuple[dict[str, str], str | None, bool]] = [
        ({"x-claude-code-session-id": "fake-session"}, None, True),
        ({"session-id": "fake-session"}, None, True),
        ({}, '{"session_id":"fake-session"}', True),
        ({}, "user_x_account__session_fake-session", True),
        ({}, "somebody", False),
    ]
    with run_pool(tmp_path, "messages", keys_of(5)) as rig:
        for headers, user, is_session in rows:
            for number in range(16):
                text, metadata = f"something else {number}", {"user_id": user}
                answer = ask(rig.gateway, "messages", "up/claude-sonnet-4-5", text, headers=headers, metadata=metadata)
                assert answer.status == 200, answer.body
            assert (len(set(rig.keyed.take_used())) == 1) is is_session, (headers, user)


def test_a_response_is_continued_by_the_credential_that_created_it(tmp_path: Path) -> None:
    with run_pool(tmp_path, "responses", keys_of(5)) as rig:
        for number in range(5):
            answer = ask(rig.gateway, "responses", "up/gpt-4.1", f"conversation {number}")
            (home,) = rig.keyed.take_used()
            id = answer.json["id"]
            assert ask(rig.gateway, "responses", "up/gpt-4.1", "Go on", previous_response_id=id).status == 200
            assert rig.keyed.take_used() == [home]


def test_a_response_that_the_gateway_keeps_is_continued_where_its_conversation_began(tmp_path: Path) -> None:
    with run_pool(tmp_path, "messages", keys_of(5), stored=("alice",)) as rig:
        for number in range(5):
            answer = ask(rig.gateway, "responses", "up/claude-sonnet-4-5", f"conversation {number}")
            assert answer.status == 200, answer.body
            id = answer.json["id"]
            (home,) = rig.keyed.take_used()
            for _ in range(2):
                answer = ask(rig.gateway, "responses", "up/claude-sonnet-4-5", "Go on", previous_response_id=id)
                assert answer.status == 200, answer.body
                id = answer.json["id"]
            assert rig.keyed.take_used() == [home] * 2


def test_a_limited_key_is_left_at_once_and_used_again_later(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = write_error(429, "Slow down.", "rate_limit_exceeded", retry_after="200")
    outcome = chat(rig, opening, "Hello", "Go on")
    assert rig.keyed.take_used() == [ONE, TWO]
    assert outcome.failed_attempts == (FailedAttempt("up/gpt-4.1", "rate_limited"),)
    chat(rig, opening, "Hello", "Go on", "Hello", "And on")
    for number in range(5):
        chat(rig, f"another conversation {number}")
    assert rig.keyed.take_used() == [TWO] * 6
    del rig.keyed.refusals[ONE]
    rig.advance_clock(201)
    find_opening(rig, ONE)
    chat(rig, opening, "Hello", "Go on")
    assert rig.keyed.take_used() == [TWO], "where its cache is now"


def test_a_streamed_request_is_moved_as_well(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = LIMITED
    chat(rig, opening, stream=True)
    assert rig.keyed.take_used() == [ONE, TWO]


def test_exhausted_keys_are_each_tried_once_and_then_the_one_that_is_free_soonest(rig: PoolRig) -> None:
    rig.keyed.refusals[ONE] = write_error(429, "Slow down.", "rate_limit_exceeded", retry_after="90")
    rig.keyed.refusals[TWO] = write_error(429, "Slow down.", "rate_limit_exceeded", retry_after="60")
    for _ in range(2):
        answer = expect_error(rig)
        assert (answer.status, answer.headers["retry-after"]) == (429, "60")
        assert sorted(rig.keyed.take_used()) in ([ONE, TWO], [TWO])
    assert rig.keyed.take_used() == []


def test_a_short_wait_is_waited_for_only_where_no_key_is_free(rig: PoolRig) -> None:
    """Three attempts: the first with both keys, then the one that is free soonest."""
    rig.keyed.refusals = {ONE: LIMITED, TWO: LIMITED}
    assert expect_error(rig).status == 429
    assert Counter(rig.keyed.take_used()) in ({ONE: 2, TWO: 2}, {ONE: 3, TWO: 1}, {ONE: 1, TWO: 3})


@pytest.fixture
def twenty(tmp_path: Path) -> Iterator[PoolRig]:
    with run_pool(tmp_path, keys=keys_of(20)) as own:
        yield own


def start_conversations(rig: PoolRig, number: int) -> dict[str, str]:
    """Return the key of each, by its opening."""
    homes: dict[str, str] = {}
    for opening in (f"running conversation {place}" for place in range(number)):
        chat(rig, opening)
        (homes[opening],) = rig.keyed.take_used()
    return homes


def refuse_new_conversations(rig: PoolRig) -> None:
    def refuse_openings(request: ReceivedRequest) -> Answer:
        answer = rig.keyed(request)
        return UNTIMED if request.json["messages"][1:] == [] else answer

    rig.upstream.choose = refuse_openings


@pytest.mark.parametrize("idle_s", [0, pytest.param(1000, marks=pytest.mark.rest)])
def test_a_limit_without_a_reset_time_for_new_conversations_leaves_running_ones_where_they_are(
    twenty: PoolRig, idle_s: float
) -> None:
    homes = start_conversations(twenty, 60)
    refuse_new_conversations(twenty)
    twenty.advance_clock(idle_s)
    for number in range(5):
        answer = ask(twenty.gateway, "chat", "up/gpt-4.1", f"new conversation {number}")
        assert (answer.status, answer.headers.get("retry-after")) == (429, None)
        assert answer.headers["x-should-retry"] == "true"
        first, other, *again = twenty.keyed.take_used()
        assert first != other
        assert again == [first, other], "three attempts, the first with another key besides"
        for opening in (opening for opening, home in homes.items() if home in (first, other)):
            outcome = chat(twenty, opening, "Hello", "Go on")
            assert (twenty.keyed.take_used(), outcome.failed_attempts) == ([homes[opening]], ())
    for opening, home in homes.items():
        chat(twenty, opening, "Hello", "Go on")
        assert twenty.keyed.take_used() == [home]


@pytest.mark.rest
@pytest.mark.parametrize("idle_s", [0, pytest.param(1000, marks=pytest.mark.rest)])
def test_only_the_refused_conversation_moves_after_a_limit_without_a_reset_time(twenty: PoolRig, idle_s: float) -> None:
    homes = start_conversations(twenty, 60)
    (key, _), *_ = Counter(homes.values()).most_common()
    refused, *others = (opening for opening, home in homes.items() if home == key)
    twenty.advance_clock(idle_s)
    twenty.keyed.refusals[key] = UNTIMED
    chat(twenty, refused, "Hello", "Go on")
    first, second = twenty.keyed.take_used()
    assert first == key
    del twenty.keyed.refusals[key]
    assert others
    for opening in others:
        chat(twenty, opening, "Hello", "Go on")
        assert twenty.keyed.take_used() == [key]
    chat(twenty, refused, "Hello", "Go on", "Hello", "And on")
    assert twenty.keyed.take_used() == [second]


def test_a_limit_without_a_reset_time_keeps_new_conversations_from_an_idle_key_for_five_seconds(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.advance_clock(100)
    rig.keyed.refusals[ONE] = UNTIMED
    chat(rig, opening)
    assert rig.keyed.take_used() == [ONE, TWO]
    for number in range(8):
        chat(rig, f"another conversation {number}")
    assert rig.keyed.take_used() == [TWO] * 8
    del rig.keyed.refusals[ONE]
    rig.advance_clock(106)
    find_opening(rig, ONE)


def test_an_overload_is_retried_in_place_and_starts_no_cooldown(tmp_path: Path) -> None:
    with run_pool(tmp_path, "messages", keys_of(20)) as rig:
        overloaded = write_error(529, "Overloaded")
        rig.keyed.refusals = dict.fromkeys(keys_of(20), overloaded)
        assert ask(rig.gateway, "messages", "up/claude-sonnet-4-5").status == 529
        used = rig.keyed.take_used()
        assert used == [used[0]] * 3
        rig.keyed.refusals.clear()
        assert ask(rig.gateway, "messages", "up/claude-sonnet-4-5").status == 200
        assert rig.keyed.take_used() == used[:1]


def test_every_key_is_tried_before_the_next_target_of_a_route(tmp_path: Path) -> None:
    more = '[providers.echo]\nkind = "echo"\n[[models]]\nname = "m"\nto = ["up/gpt-4.1", "echo/echo"]\n'
    with run_pool(tmp_path, keys=keys_of(3), more=more) as rig:
        for key in keys_of(3):
            rig.keyed.refusals[key] = write_error(429, "Slow down.", retry_after="90")
        reply_text = rig.sdk.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        assert reply_text.choices[0].message.content
        assert rig.sdk.headers["x-dragoman-route"] == "echo/echo"
        assert sorted(rig.keyed.take_used()) == keys_of(3)
        steps = rig.gateway.outcome(rig.sdk.headers["x-request-id"]).failed_attempts
        assert [step.why for step in steps] == ["rate_limited"] * 3


def test_a_revoked_key_costs_one_attempt_and_is_named_without_its_value(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = REVOKED
    for _ in range(3):
        chat(rig, opening)
    assert rig.keyed.take_used() == [ONE, TWO, TWO, TWO]
    rig.keyed.refusals[TWO] = REVOKED
    answer = expect_error(rig)
    assert answer.status == 502
    assert b"credential 2 of 2" in answer.body
    assert b"sk-fake" not in answer.body
    assert rig.keyed.take_used() == [TWO]


def test_a_log_names_the_credential_without_its_value(rig: PoolRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = REVOKED
    chat(rig, opening)
    assert "provider up, credential 1 of 2: credential, not used for 3600 s" in caplog.text
    assert ONE not in caplog.text
    assert TWO not in caplog.text


def test_a_rate_limit_is_reported_in_preference_to_a_revoked_key(rig: PoolRig) -> None:
    rig.keyed.refusals = {ONE: REVOKED, TWO: write_error(429, "Slow down.", retry_after="70")}
    assert expect_error(rig).status == 429
    assert sorted(rig.keyed.take_used()) == [ONE, TWO]


def test_a_key_without_the_model_hands_on_and_stays_in_use(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = write_error(404, "The model does not exist.", "model_not_found")
    chat(rig, opening)
    assert rig.keyed.take_used() == [ONE, TWO]
    assert rig.pool.states(rig.pool.clock()) == [MemberState("1 of 2"), MemberState("2 of 2")]


@pytest.mark.parametrize("status", [500, 400])
def test_failures_that_no_other_key_can_fix_are_not_retried(rig: PoolRig, status: int) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals = dict.fromkeys((ONE, TWO), write_error(status, "No."))
    assert ask(rig.gateway, "chat", "up/gpt-4.1", opening).status >= 400
    assert rig.keyed.take_used() == [ONE] * (3 if status == 500 else 1)


@pytest.mark.parametrize(
    ("protocol", "headers"),
    [
        ("chat", {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2m0s"}),
        (
            "messages",
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2999-01-01T00:00:00Z",
            },
        ),
    ],
)
def test_a_good_answer_that_used_up_its_key_starts_a_cooldown(
    tmp_path: Path, protocol: str, headers: dict[str, str]
) -> None:
    with run_pool(tmp_path, protocol) as rig:
        rig.keyed.headers = tuple(headers.items())
        for _ in range(2):
            assert ask(rig.gateway, protocol, "up/m").status == 200
        assert sorted(rig.keyed.take_used()) == [ONE, TWO]
        assert all(state.reason in ("", "spent") for state in rig.pool.states(rig.pool.clock()))


def test_a_reset_that_only_the_vendors_headers_name_is_followed(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    response = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "4m10s"}
    rig.keyed.refusals[ONE] = write_error(429, "Slow down.", "rate_limit_exceeded", **response)
    chat(rig, opening)
    rig.advance_clock(60)
    assert {state.model for state in rig.pool.states(rig.pool.clock())} == {"", "gpt-4.1"}
    rig.advance_clock(251)
    assert {state.model for state in rig.pool.states(rig.pool.clock())} == {""}


def test_a_cooldown_for_one_model_leaves_the_key_to_other_models(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = write_error(429, "Slow down.", retry_after="60")
    chat(rig, opening)
    del rig.keyed.refusals[ONE]
    rig.keyed.take_used()
    for number in range(20):
        ask(rig.gateway, "chat", "up/gpt-4.1-mini", f"conversation {number} of another model")
    assert ONE in rig.keyed.take_used()


def test_a_key_that_is_free_soon_is_not_hidden_by_one_that_is_used_up_for_days(rig: PoolRig) -> None:
    """The first cools down and is not used; its limit is still the time that the client has to wait."""
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = write_error(429, "Slow down.", retry_after="120")
    chat(rig, opening)
    rig.keyed.take_used()
    rig.keyed.refusals[TWO] = write_error(429, "Used up.", "insufficient_quota", retry_after="360000")
    response = ask(rig.gateway, "chat", "up/gpt-4.1", opening)
    assert (response.status, rig.keyed.take_used()) == (429, [TWO])
    assert 60 <= float(response.headers["retry-after"]) <= 120
    assert response.headers.get("x-should-retry") != "false"
    rig.keyed.refusals.clear()
    rig.advance_clock(121)
    chat(rig, opening)
    assert rig.keyed.take_used() == [ONE]


def test_an_edit_keeps_what_is_known_of_the_keys_that_stay(rig: PoolRig) -> None:
    opening = find_opening(rig, ONE)
    rig.keyed.refusals[ONE] = write_error(429, "Slow down.", retry_after="200")
    chat(rig, opening)
    assert rig.keyed.take_used() == [ONE, TWO]
    keys = ["sk-fake-key-new", TWO, ONE]
    rig.gateway.adopt(QUICK + make_section("chat", rig.upstream.url, keys))
    chat(rig, opening, "Hello", "Go on")
    assert rig.keyed.take_used() == [TWO]
    for number in range(30):
        chat(rig, f"conversation {number} after the edit")
    assert set(rig.keyed.take_used()) == {"sk-fake-key-new", TWO}
    rig.gateway.adopt(QUICK + make_section("chat", rig.upstream.url, [ONE]))
    del rig.keyed.refusals[ONE]
    chat(rig, opening)
    assert rig.keyed.take_used() == [ONE]


def test_a_variable_that_is_not_set_is_one_key_less(tmp_path: Path) -> None:
    with run_pool(tmp_path, keys=["env:NOT_SET_HERE", TWO]) as rig:
        for number in range(8):
            chat(rig, f"conversation {number}")
        assert rig.keyed.take_used() == [TWO] * 8
        rig.keyed.refusals[TWO] = REVOKED
        assert expect_error(rig).status == 502


def test_tokens_are_counted_with_a_key_that_is_free(tmp_path: Path) -> None:
    with run_pool(tmp_path, "messages") as rig:
        rig.keyed.refusals[ONE] = write_error(429, "Slow down.", retry_after="90")
        for number in range(8):
            assert ask(rig.gateway, "messages", "up/claude-sonnet-4-5", f"conversation {number}").status == 200
        rig.keyed.take_used()
        request = {"model": "up/claude-sonnet-4-5", "messages": [{"role": "user", "content": "Hi"}]}
        send(rig.gateway, "POST", "/v1/messages/count_tokens", request)
        assert rig.keyed.take_used() == [TWO]


def test_a_list_of_one_key_is_no_pool(tmp_path: Path) -> None:
    toml = make_section("chat", "http://127.0.0.1:9/v1", [ONE])
    with running(toml, tmp_path) as gateway:
        assert gateway.app.gateway.runtime.providers["up"].account.pool is None


def test_reasoning_that_another_account_cannot_read_is_left_out_once(tmp_path: Path) -> None:
    """Passed through and translated: the conversation continues, and the ledger lists the losses."""
    with run_pool(tmp_path, "responses") as rig:
        unreadable = write_error(400, "The encrypted content could not be verified.", "invalid_encrypted_content")
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "fake-sealed"}
        items = [
            {"role": "user", "content": "Hi"},
            thought,
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Go on"},
        ]
        usual = rig.upstream.choose
        assert usual is not None

        def refuse_sealed(request: ReceivedRequest) -> Answer:
            if b"fake-sealed" not in request.body:
                return usual(request)
            rig.keyed.seen.append("sealed")
            return unreadable

        rig.upstream.choose = refuse_sealed
        explained = {"x-dragoman-explain": "1"}
        answer = ask(rig.gateway, "responses", "up/gpt-5", headers=explained, input=items, store=False)
        assert answer.status == 200, answer.body
        seen = rig.keyed.take_used()
        assert (seen[0], len(seen)) == ("sealed", 2)
        assert ("/input/1", "dropped") in answer.losses


def test_a_messages_client_gets_a_limit_in_its_own_error_format(tmp_path: Path) -> None:
    with run_pool(tmp_path, "messages") as rig:
        rig.keyed.refusals = dict.fromkeys((ONE, TWO), write_error(429, "Slow down.", retry_after="90"))
        with pytest.raises(anthropic.RateLimitError):
            rig.sdk.anthropic.messages.create(
                model="up/claude-sonnet-4-5", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
            )
        assert sorted(rig.keyed.take_used()) == [ONE, TWO]


def test_many_at_once_lose_nothing_when_a_key_is_limited(tmp_path: Path) -> None:
    """Each request is refused by that key at most once, and answered by the other."""
    with run_pool(tmp_path) as rig:
        rig.keyed.refusals[ONE] = write_error(429, "Slow down.", retry_after="90")
        with ThreadPoolExecutor(12) as threads:
            outcomes = list(threads.map(lambda number: chat(rig, f"conversation {number}"), range(48)))
        seen = Counter(rig.keyed.take_used())
        assert seen[TWO] == 48
        assert seen[ONE] == sum(len(outcome.failed_attempts) for outcome in outcomes)
        assert 1 <= seen[ONE] <= 12, "whoever came after the first refusal knew of it"

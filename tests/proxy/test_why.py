"""Why a request passes or is translated: one short reason, the first that applies."""

import pytest
from msgspec.structs import replace

from dragoman.proxy.why import Obstacles, explain_translation, other_protocols, same_protocol
from proxy.in_memory import CHAT, MESSAGES, make_call, make_provider, prepare_for
from tables import each_row

NONE = Obstacles("chat", "chat")


@each_row(
    ("found", "reason"),
    [
        (NONE, "the provider's replies are adapted"),
        (replace(NONE, continues_stored=True, is_stored=True), "the response continues a stored one"),
        (replace(NONE, is_stored=True, tools=("web_search",)), "the gateway stores the response"),
        (replace(NONE, chosen="responses"), "the model takes this request as responses only"),
        (replace(NONE, tools=("web_search",), may_continue=True), "web_search runs in the gateway"),
        (replace(NONE, tools=("web_search", "web_fetch")), "web_search and web_fetch run in the gateway"),
        (replace(NONE, has_envelope=True), "the history has reasoning of another provider"),
        (replace(NONE, is_converted=True), "the request has another form than its reply"),
        (replace(NONE, is_changed=True, may_continue=True), "the upstream refused the request as it was"),
        (replace(NONE, may_continue=True), "another target may continue the stream"),
    ],
)
def test_the_first_obstacle_is_the_reason(found: Obstacles, reason: str) -> None:
    assert str(explain_translation(found)) == f"translated; {reason}"


@pytest.mark.parametrize(
    ("client", "body", "why"),
    [
        ("chat", CHAT, "passed; the upstream speaks chat"),
        ("messages", MESSAGES, "translated; the provider speaks chat only"),
    ],
)
async def test_a_prepared_request_says_why(client: str, body: bytes, why: str) -> None:
    assert str((await prepare_for(make_call(client, body), make_provider())).why) == why


def test_other_protocols_are_named() -> None:
    assert str(other_protocols(("messages",))) == "translated; the provider speaks messages only"
    assert str(other_protocols(("a", "b", "c"))) == "translated; the provider speaks a, b and c only"


def test_the_reason_of_most_requests_is_made_once() -> None:
    assert same_protocol("chat") is same_protocol("chat")
    assert other_protocols(("chat",)) is other_protocols(("chat",))

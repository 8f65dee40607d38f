"""An error that quotes its user's text teaches nothing, whatever words it quotes, even if the request has the field.

The words of every rule, as servers have written them, are put into errors in every way in which a server may repeat
what a user wrote. The requests have the fields that the words are about.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.rejections.complaint import read_complaint
from dragoman.upstreams.rejections.reasoning import adjust_reasoning
from dragoman.upstreams.rejections.rules import find_rules
from dragoman.upstreams.rejections.sent import Sent
from e2e.rejection_cases import CASES, USER, Case
from wire_json import JsonObject

WRITTEN = [case for case in CASES if isinstance(case.words, str) and case.client == case.upstream]
FRAMES = (
    'The text "{}" is too long',
    "Could not read '{}'",
    "Could not fetch https://a.example/{}",
    "Could not fetch https://a.example/?q={} in time",
    "The model said:\n{}",
    "The model said:\r\n\r\n{}\n",
    "{}\nwas flagged",
    "{} was flagged by our safety system",
    "Invalid content: {}",
    "This content is not allowed. {}",
    "messages.3: Value error, {}",
    "Assertion failed, {}",
    "`{}`",
    '"{}"',
    "'{}'",
    "({})",
    "<error>{}</error>",
    "\\n{}",
)


def make_sent(case: Case) -> Sent:
    body: JsonObject = {"model": "m", "messages": [USER], **case.fields}
    headers = tuple((name.encode(), value.encode()) for name, value in case.headers.items())
    return Sent(case.upstream, msgspec.json.encode(body), headers)


def learn(case: Case, error: JsonObject) -> object:
    """Return what an error about this request teaches; nothing if that is empty."""
    body = msgspec.json.encode(error)
    complaint = read_complaint(500 if case.status == 500 else 400, body)
    return find_rules(complaint, make_sent(case)) or adjust_reasoning(Failure(Kind.BAD_REQUEST, complaint.message))


def bodies(text: str) -> list[JsonObject]:
    """Return errors with this message, in the shapes that vendors use."""
    return [
        {"error": {"message": text, "type": "invalid_request_error", "code": "bad"}},
        {"message": text, "type": "order", "code": 3230},
        {"error": text},
        {"detail": text},
        {"error": {"message": "Bad.", "param": text, "code": "unsupported_value"}},
        {"detail": [{"type": "string_too_long", "loc": ["body", "messages", 0], "msg": "Too long.", "input": text}]},
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "messages"], "msg": "No.", "input": text}]},
        {"error": {"message": "Bad.", "metadata": {"raw": text}}},
        {"error": {"message": "Bad.", "details": [{"fieldViolations": [{"description": text}]}]}},
    ]


@pytest.mark.parametrize("case", WRITTEN, ids=[f"{number} {case}" for number, case in enumerate(WRITTEN)])
def test_the_words_of_a_rule_that_are_quoted_teach_nothing(case: Case) -> None:
    words = str(case.words)
    assert learn(case, {"error": {"message": words}}), "the words themselves do"
    for frame in FRAMES:
        for error in bodies(frame.replace("{}", words)):
            assert not learn(case, error), error
    for error in bodies(words)[4:]:
        assert not learn(case, error), error


TEXT = st.text(min_size=1, max_size=40).filter(lambda text: text.strip(" \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0") != "")
WORD = st.from_regex(r"[A-Za-z]{2,12}( [a-z]{2,9}){0,4}[,:;.!?\n] ?", fullmatch=True)


@settings(max_examples=50)
@given(case=st.sampled_from(WRITTEN), before=WORD | TEXT, after=WORD | st.just(""))
def test_words_at_the_end_of_any_text_teach_nothing(case: Case, before: str, after: str) -> None:
    error: JsonObject = {"error": {"message": f"{before} says: {case.words}{after and ' ' + after}"}}
    assert not learn(case, error), error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Extra inputs are not permitted</html>",
        b'{"error": {"message": "Unsupported parameter: ',
        b"\xff\xfe{}",
        b'{"error":{"message":"Unsupported parameter: \xff"}}',
        b'{"error":{"message":["Unsupported parameter: \'seed\'"]}}',
        b'{"error":{"message":{"a":"Unsupported parameter: \'seed\'"}}}',
        b'{"error":{"message":5,"param":["seed"],"code":{"a":1}}}',
        b'{"error":{"message":null,"param":{"seed":1},"code":"unsupported_parameter"}}',
        b'{"detail":[{"type":"extra_forbidden","loc":"seed"}]}',
        b'{"detail":[{"type":"extra_forbidden","loc":{"0":"seed"}}]}',
        b'{"detail":[{"type":["extra_forbidden"],"loc":["body","seed"]}]}',
        b'{"detail":[{"type":"extra_forbidden","loc":[["body"],["seed"]]}]}',
        b'{"detail":[{"type":"extra_forbidden","loc":["body",null]}]}',
        b'{"detail":{"type":"extra_forbidden","loc":["body","seed"]}}',
        b"[\"Unsupported parameter: 'seed'\"]",
        b"\"Unsupported parameter: 'seed'\"",
        b'{"error":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"error":{"message":"' + b"Unsupported parameter: 'seed' " * 100_000 + b'"}}',
    ],
)
def test_a_strange_error_teaches_nothing(body: bytes) -> None:
    sent = Sent("chat", b'{"model":"m","seed":1,"messages":[]}')
    assert find_rules(read_complaint(400, body), sent) == ()

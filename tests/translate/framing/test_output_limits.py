"""The limit of a reply's tokens is read and lowered where the client wrote it; every other byte stays."""

from dragoman.translate.framing.output_limits import find_output_limit, lower_output_limit
from dragoman.translate.protocols import PROTOCOLS
from tables import each_row


def paths_of(protocol: str) -> tuple[tuple[str, ...], ...]:
    client = PROTOCOLS[protocol].client
    assert client is not None
    return client.output_limits


@each_row(
    ("protocol", "body", "lowered"),
    [
        ("messages", b'{"max_tokens" : 5000, "x":1 }', b'{"max_tokens" : 1000, "x":1 }'),
        ("messages", b'{"max_tokens":1000}', b'{"max_tokens":1000}'),
        ("messages", b'{"max_tokens":0}', b'{"max_tokens":0}'),
        ("messages", b'{ "model":"m" }', b'{ "model":"m","max_tokens":1000 }'),
        ("messages", b"{}", b'{"max_tokens":1000}'),
        ("messages", b'{"max_tokens":null}', b'{"max_tokens":1000}'),
        ("messages", b'{"max_tokens":1e9}', b'{"max_tokens":1000}'),
        ("messages", b'{"messages":[{"max_tokens":9999}]}', b'{"messages":[{"max_tokens":9999}],"max_tokens":1000}'),
        ("messages", b'{"max_tokens":9999,"max_tokens":5}', b'{"max_tokens":5,"max_tokens":5}'),
        ("messages", b'{"max_tokens":"many"}', b'{"max_tokens":1000}'),
        ("chat", b'{"max_tokens":9000}', b'{"max_tokens":1000}'),
        ("chat", b'{"max_completion_tokens":9000}', b'{"max_completion_tokens":1000}'),
        ("chat", b'{"max_tokens":7,"max_completion_tokens":9000}', b'{"max_tokens":7,"max_completion_tokens":1000}'),
        ("chat", b'{"model":"m"}', b'{"model":"m","max_completion_tokens":1000}'),
        ("responses", b'{"input":"a"}', b'{"input":"a","max_output_tokens":1000}'),
        ("gemini", b'{"contents":[]}', b'{"contents":[],"generationConfig":{"maxOutputTokens":1000}}'),
        ("gemini", b'{"generationConfig":{}}', b'{"generationConfig":{"maxOutputTokens":1000}}'),
        ("gemini", b'{"generation_config":{"a":1}}', b'{"generation_config":{"a":1,"maxOutputTokens":1000}}'),
        (
            "gemini",
            b'{"generation_config":{"max_output_tokens":9000}}',
            b'{"generation_config":{"max_output_tokens":1000}}',
        ),
        ("messages", b"[1]", b"[1]"),
        ("messages", b"no JSON", b"no JSON"),
    ],
)
def test_a_limit_is_lowered_in_place_and_set_where_there_is_none(protocol: str, body: bytes, lowered: bytes) -> None:
    assert lower_output_limit(body, paths_of(protocol), 1000) == lowered


@each_row(
    ("protocol", "body", "limit"),
    [
        ("messages", b'{"max_tokens":5000}', 5000),
        ("messages", b'{"max_tokens":-3}', 0),
        ("messages", b'{"max_tokens":"5"}', None),
        ("chat", b'{"max_tokens":7,"max_completion_tokens":5}', 5),
        ("gemini", b'{"generationConfig":{"maxOutputTokens":12.0}}', 12),
        ("responses", b"{}", None),
        ("responses", b"\xff", None),
    ],
)
def test_the_limit_that_a_request_sets_is_found(protocol: str, body: bytes, limit: int | None) -> None:
    assert find_output_limit(body, paths_of(protocol)) == limit

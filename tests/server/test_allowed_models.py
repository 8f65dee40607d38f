"""A key lists the models that it may use, in every shape, and no others."""

from pathlib import Path

import asking
from gateway import running
from tables import each_row

SETTINGS = """
[providers.one]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:1"
models = ["big", "small"]
list_models = false
[providers.two]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:1"
models = ["small", "tiny"]
list_models = false
[[models]]
name = "best"
to = ["one/big", "two/tiny"]
[[teams]]
name = "core"
providers = ["two"]
"""
PATH = "/api/v1/keys/someone"
SHAPES: tuple[dict[str, str], ...] = ({}, {"anthropic-version": "2023-06-01"}, {"x-goog-api-client": "x"})


def test_a_key_lists_the_models_that_it_may_use(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["someone"]) as gateway:
        every = {"best", "one/big", "one/small", "two/small", "two/tiny", "big", "tiny"}
        rows = [
            ({"models": None}, every),
            ({"models": ["best"]}, {"best"}),
            ({"models": ["one/*"]}, {"best", "one/big", "one/small", "big"}),
            ({"models": ["*small"]}, {"one/small", "two/small"}),
            ({"models": ["none"]}, set()),
            ({"models": None, "providers": ["o*"]}, {"best", "one/big", "one/small", "big"}),
            ({"providers": None, "team": "core"}, {"best", "two/small", "two/tiny", "tiny"}),
            ({"models": ["best", "*big"]}, {"best"}),
            ({"team": None, "models": None}, every),
        ]

        @each_row(("fields", "expected"), rows)
        def check(fields: dict[str, object], expected: set[str]) -> None:
            assert asking.send(gateway, "PATCH", PATH, body=fields).status == 200
            key = gateway.keys["someone"]
            for headers in SHAPES:
                listed = asking.send(gateway, "GET", "/v1/models", key=key, headers=headers).body.decode()
                found = {name for name in every if f'"{name}"' in listed or f'"models/{name}"' in listed}
                assert found == expected, headers
            for name in every:
                status = asking.send(gateway, "GET", f"/v1/models/{name}", key=key).status
                assert (status == 200) == (name in expected), name
            assert asking.send(gateway, "GET", "/v1/models/best").status == 200  # the environment's key has no limits

        check()

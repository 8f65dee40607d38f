"""A client may name the model that answers to names which do not exist here."""

from pathlib import Path

from gateway import running
from raw_http import post

ECHO = '[providers.echo]\nkind = "echo"\n[[models]]\nname = "known"\nto = ["echo/echo"]\n'
HEADER = "x-dragoman-fallback-model"
CHAT = b'{"model": "%s", "messages": [{"role": "user", "content": "Hi"}]}'
CONTENTS = b'{"contents": [{"parts": [{"text": "Hi"}]}]}'
CASES = [  # the requested model, that of the header, the status
    ("gemini-3-flash-preview", "echo", 200),
    ("gemini-3-flash-preview", "known", 200),
    ("gemini-3-flash-preview", "unknown", 404),
    ("known", "unknown", 200),
    ("nope/x", "echo", 200),
]


def test_an_unknown_model_is_answered_by_the_one_of_the_header(tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as gateway:
        for model, fallback, status in CASES:
            header, body = f"{HEADER}: {fallback}", CHAT % model.encode()
            assert post(gateway.port, "/v1/chat/completions", body, header).status == status, (model, fallback)
            counted = post(gateway.port, f"/v1beta/models/{model}:countTokens", CONTENTS, header)
            assert counted.status == status, (model, fallback)
            without = post(gateway.port, "/v1/chat/completions", body)
            assert without.status == (200 if model == "known" else 404), model

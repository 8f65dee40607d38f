"""Captures are anonymised without a change of shape: lengths, names, ids and what a gateway interprets stay."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.captured import list_all
from wire_json import Json, JsonObject

TOOL = Path(__file__).parents[1] / "tools" / "anonymise_captures.py"
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
GRAMMAR = 'start: first rest?\nfirst: "*** Begin" LF // how it begins\nrest: /(.+)/ | "\\n"\n\n%import common.LF\n'
BILLING = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli;"
DESCRIPTION = "Reads a file — one “line” at a time — from Zürich 東京.\n\n  - Never guess the name of a file.\n"
BODY: JsonObject = {
    "model": "some-model",
    "system": [{"type": "text", "text": BILLING}, {"type": "text", "text": "Take care of other people's files."}],
    "input": [
        {
            "role": "user",
            "content": "<system-reminder>\nBe kind to us.\n</system-reminder> See https://example.org/a?b=1",
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}],
        },
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAA" + "bC3_" * 30, "summary": []},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "Read",
            "input": {"type": "two words", "depth": 2, "deep": ["one two"]},
        },
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "Read",
            "arguments": '{"path": "a b\\n\\"c\\"", "all": true, "n": 1.5e3}',
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": '[{"text":"Z\\u00fcrich is \\u2014 far away"}]',
        },
    ],
    "tools": [
        {
            "type": "function",
            "name": "Read",
            "description": DESCRIPTION,
            "parameters": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"description": {"type": "string", "enum": ["a few", "many"], "pattern": "^[a b]+$"}},
                "required": ["description"],
            },
        },
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}},
    ],
    "metadata": {"user_id": '{"session_id":"e9d90fca-4508-49eb-bfd7-30e3811acd93","kind":"turn","cut":"of…'},
}
CAPTURE: JsonObject = {
    "client": "some-client-1.0",
    "seq": 1,
    "method": "POST",
    "path": "/v1/responses",
    "query": "beta=true&key=fake-key",
    "headers": [["Authorization", "Bearer fake-token"], ["X-Api-Key", "<REDACTED len=9>"], ["Accept", "*/*"]],
    "body": BODY,
    "note": "Of the recording proxy.",
}


def run_tool(source: Path, target: Path) -> str:
    command = [sys.executable, str(TOOL), str(source), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> JsonObject:
    """The capture after the tool, which prints what it did and gives the same bytes each time."""
    folder = tmp_path_factory.mktemp("captures")
    (folder / "source" / "client").mkdir(parents=True)
    (folder / "source" / "client" / "01-responses.json").write_text(json.dumps(CAPTURE))
    assert run_tool(folder / "source", folder / "first").startswith("1 captures of 1 clients, ")
    run_tool(folder / "source", folder / "second")
    first, second = (folder / name / "client" / "01-responses.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    decoded: JsonObject = json.loads(first.read_text())
    return decoded


def pair_strings(before: Json, after: Json) -> Iterator[tuple[str, str]]:
    """Yield every string before and after; the shape must be the same."""
    assert type(before) is type(after)
    if isinstance(before, dict):
        assert list(before) == list(after)
        for key in before:
            yield from pair_strings(before[key], after[key])
    elif isinstance(before, list):
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            yield from pair_strings(one, other)
    elif isinstance(before, str):
        yield before, after
    else:
        assert before == after


def find_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text)


def test_lengths_bytes_and_line_breaks_stay(made: JsonObject) -> None:
    for before, after in pair_strings(BODY, made["body"]):
        assert (len(before), len(before.encode())) == (len(after), len(after.encode()))
        assert re.sub(r"\S", "x", before) == re.sub(r"\S", "x", after)


def test_no_sentence_survives(made: JsonObject) -> None:
    text = made["body"]["tools"][0]["description"]
    assert text != DESCRIPTION
    survivors = [word for word in find_words(DESCRIPTION) if len(word) > 2 and word in find_words(text)]
    assert survivors == []
    body = json.dumps(made["body"], ensure_ascii=False)
    for gone in ("other people", "kind to us", "two words", "one two", "far away", "Begin", "begins"):
        assert gone not in body


def test_what_a_gateway_interprets_stays(made: JsonObject) -> None:
    body = made["body"]
    assert body["system"][0]["text"] == BILLING
    assert re.fullmatch(
        r"<system-reminder>\n\w+ \w+ \w+ \w+\.\n</system-reminder> \w+ https://\w+\.\w+/\w\?\w=1",
        body["input"][0]["content"],
    )
    image = body["input"][1]["content"][0]["image_url"]
    assert image.startswith(f"data:image/png;base64,{IMAGE[:44]}")
    assert image.endswith(IMAGE[-4:])
    assert IMAGE not in image
    assert body["input"][2]["encrypted_content"].startswith("gAAAA")
    for at in (0, 1):
        kept = {name: value for name, value in BODY["tools"][at].items() if name not in ("description", "format")}
        assert {name: body["tools"][at][name] for name in kept} == kept
    assert [item.get("id", item.get("call_id")) for item in body["input"]] == [
        None,
        None,
        "rs_1",
        "toolu_1",
        "call_1",
        "call_1",
    ]


def test_json_in_a_string_stays_json(made: JsonObject) -> None:
    call, output = made["body"]["input"][4:]
    arguments = json.loads(call["arguments"])
    assert (list(arguments), arguments["all"], arguments["n"]) == (["path", "all", "n"], True, 1500.0)
    assert re.fullmatch(r'\w \w\n"\w"', arguments["path"])
    assert "\\u2014" in output["output"]
    assert list(json.loads(output["output"])[0]) == ["text"]
    user_id = made["body"]["metadata"]["user_id"]
    assert user_id.startswith('{"session_id":"e9d90fca-4508-49eb-bfd7-30e3811acd93","kind":"turn","cut":"')


def test_a_grammar_keeps_its_rules(made: JsonObject) -> None:
    definition = made["body"]["tools"][1]["format"]["definition"]
    found = re.fullmatch(
        r'start: (\w+) (\w+)\?\n(\w+): "\*\*\* \w+" LF // \w+ \w+ \w+\n'
        r'(\w+): /\(\.\+\)/ \| "\\n"\n\n%import common\.LF\n',
        definition,
    )
    assert found is not None, definition
    assert found[1] == found[3] != found[2] == found[4]


def test_secrets_and_notes_are_removed(made: JsonObject) -> None:
    assert made["headers"] == [["Authorization", "Bearer <REDACTED len=10>"], *CAPTURE["headers"][1:]]
    assert made["query"] == "beta=true&key=<REDACTED len=8>"
    assert "note" not in made


def test_a_folder_without_captures_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), str(tmp_path), str(tmp_path / "target")]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "contains no captures" in failed.stderr


def test_recorded_captures_are_anonymised() -> None:
    """Those with headers were recorded; the others were written by hand."""
    recorded = [found for found in list_all() if found.headers or found.method == "WS"]
    assert len(recorded) > 90
    for found in recorded:
        assert re.findall(rb"(?i)\b(?:the|you|and|that|with) ", bytes(found.body)) == [], found.name

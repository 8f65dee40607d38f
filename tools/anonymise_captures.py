"""Copy captured requests of real clients, with generated text of the same length in place of every sentence.

    python tools/anonymise_captures.py SOURCE TARGET

SOURCE contains CLIENT/NN-ENDPOINT.json, as a recording proxy writes them: `client`, `method`, `path`, `query`,
`headers` and `body`. What a gateway interprets stays: fields and their order, names of tools and parameters, schemas,
ids, models, numbers, tags, and the length of every string in characters and in bytes. The same capture always gives the
same bytes.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from random import Random
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MAX_BYTES = 16 * 1024 * 1024  # of one capture

# Fields whose strings are text, even if it is one word.
TEXT = frozenset(
    [
        *("text", "content", "thinking", "reasoning_content", "refusal", "system", "instructions", "prompt"),
        *("input", "arguments", "output", "description", "title", "examples", "$comment", "filename"),
    ]
)
# Fields whose strings have a meaning, even if they contain spaces.
EXACT = frozenset(
    [
        *("type", "role", "model", "media_type", "mime_type", "mimeType"),
        *("pattern", "enum", "const", "required", "format", "$schema", "$id", "$ref"),
    ]
)
# Fields with encoded bytes, which only their vendor can read.
OPAQUE = frozenset(("data", "signature", "thoughtSignature", "thought_signature", "encrypted_content"))
# Fields whose objects are a call's arguments or result: every string in them is text.
FREE = frozenset(("input", "arguments", "args", "output", "response"))
SECRET_HEADERS = frozenset(("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"))
SECRET_PARAMETER = re.compile(r"(?<![^&])((?:key|api_key|access_token)=)(?!<REDACTED)([^&]+)")

IDENTIFIER = re.compile(r"(?!.*://)[A-Za-z0-9_.:+@/-]{1,128}")
ENCODED = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
DATA_URL = r"data:[\w/+.-]{1,80};base64,"
# What a text may contain that is not replaced, then what is: a run of letters.
TOKEN = re.compile(
    r"(?P<exact>^x-anthropic-billing-header:.*"
    r"|<REDACTED[^<>]{0,40}>"
    r"|</?[A-Za-z][\w-]{0,60}(?:\ [\w-]{1,60}){0,2}\ ?/?>"  # a tag
    r"|[A-Za-z][A-Za-z0-9+.-]{0,15}://"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b[0-9a-f]{32,64}\b)"
    rf"|(?P<data>{DATA_URL}[A-Za-z0-9+/=_-]*)"
    r"|(?P<word>[^\W\d_]+)",
    re.MULTILINE,
)
LOOKS_LIKE_JSON = re.compile(r"\s*[\[{]\s*[\"\[{]")
JSON_TOKEN = re.compile(r'(?P<literal>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?|(?P<word>[^\W\d_]+)', re.DOTALL)
JSON_WORDS = frozenset(("true", "false", "null", "e", "E"))
GRAMMAR_TOKEN = re.compile(
    r'(?P<exact>^%.*|/(?![/*])(?:\\.|[^/\\\n])+/[a-z]*)|(?P<text>"(?:\\.|[^"\\\n])*"|//.*)|(?P<name>[A-Za-z_]\w*)',
    re.MULTILINE,
)

CONSONANTS, VOWELS = "dlmnrvz", "eiou"
LETTERS_BY_BYTES = {2: "äöüéèêàñç", 3: "一二三四五六七八九十", 4: "𠀀𠀁𠀂𠀃𠀄"}


class Anonymiser:
    """Replaces the texts of requests, and counts them."""

    def __init__(self) -> None:
        self.texts = 0

    def replace_capture(self, capture: dict[str, Json]) -> dict[str, Json]:
        """Return the request without prose and secrets; what else the recording holds is left out."""
        made: dict[str, Json] = {name: capture[name] for name in ("client", "seq", "method", "path") if name in capture}
        made["query"] = redact_query(capture.get("query", ""))
        made["headers"] = redact_headers(capture.get("headers", []))
        made["body"] = self.replace_value(capture.get("body"), "input")
        return made

    def replace_value(self, value: Json, name: str, *, free: bool = False) -> Json:
        """Return the value of the field `name`; `free` if every string in it is text."""
        if isinstance(value, dict):
            if name == "format" and value.get("syntax") == "lark":
                return {key: replace_grammar(inner) if key == "definition" else inner for key, inner in value.items()}
            return {
                key: self.replace_value(inner, key, free=free or is_free(key, inner)) for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self.replace_value(inner, name, free=free) for inner in value]
        return self.replace_string(value, name, free=free) if isinstance(value, str) else value

    def replace_string(self, text: str, name: str, *, free: bool) -> str:
        if LOOKS_LIKE_JSON.match(text):
            return self.replace_json(text, free=free or name in TEXT)
        if name in OPAQUE and ENCODED.fullmatch(text):
            return replace_encoded(text)
        is_exact = name in EXACT or (name not in TEXT and IDENTIFIER.fullmatch(text))
        if is_exact and not free:
            return text
        self.texts += 1
        return replace_text(text)

    def replace_json(self, text: str, *, free: bool) -> str:
        """Replace the values in JSON that is itself a string, also if its end was cut off."""
        random, name = Random(text), ""

        def replace(found: re.Match[str]) -> str:
            nonlocal name
            if found["word"]:
                return found[0] if found[0] in JSON_WORDS else make_word(found[0], random)
            literal: str = found["literal"]
            try:
                decoded = str(json.loads(literal, strict=False))
            except ValueError:
                return replace_text(found[0])
            if found["colon"] and not re.search(r"\s", decoded):
                name = decoded
                return found[0]
            replaced = self.replace_string(decoded, name, free=free)
            is_ascii = json.dumps(decoded) == literal
            return json.dumps(replaced, ensure_ascii=is_ascii) + (found["colon"] or "")

        return JSON_TOKEN.sub(replace, text)


def is_free(name: str, value: Json) -> bool:
    return name in FREE and isinstance(value, dict)


def replace_text(text: str) -> str:
    """Replace every word by a generated one; spaces, line breaks, punctuation, digits and tags stay."""
    random = Random(text)

    def replace(found: re.Match[str]) -> str:
        if found["word"]:
            return make_word(found["word"], random)
        if found["data"]:
            head, comma, data = found["data"].partition(",")
            return head + comma + replace_encoded(data)
        return found[0]

    return TOKEN.sub(replace, text)


def make_word(like: str, random: Random) -> str:
    """Return a word that can be pronounced, with as many letters and bytes and the same capitals."""
    letters = []
    is_vowel = random.random() < 0.3
    for letter in like:
        size = len(letter.encode())
        made = random.choice(LETTERS_BY_BYTES.get(size, VOWELS if is_vowel else CONSONANTS))
        letters.append(made.upper() if letter.isupper() else made)
        is_vowel = not is_vowel
    return "".join(letters)


def replace_encoded(data: str) -> str:
    """Replace encoded bytes by others, except for the first 33, which say what they are, and the last."""
    random, kinds = Random(data), ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789")
    head, middle, tail = data[:44], data[44:-4], data[44:][-4:]
    made = (next((random.choice(kind) for kind in kinds if character in kind), character) for character in middle)
    return head + "".join(made) + tail


def replace_grammar(definition: Json) -> Json:
    """Rename the rules of a Lark grammar and replace its literals; it still parses, into as many rules."""
    if not isinstance(definition, str):
        return definition
    names: dict[str, str] = {
        name: name for name in re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"(?m)^%.*", definition)))
    }
    names["start"] = "start"

    def replace(found: re.Match[str]) -> str:
        if found["exact"]:
            return found[0]
        if found["text"]:
            return re.sub(r"(\\.)|([^\W\d_]+)", lambda part: part[1] or replace_text(part[2]), found[0])
        if found["name"] not in names:
            names[found["name"]] = make_name(found["name"], taken=set(names.values()))
        return names[found["name"]]

    return GRAMMAR_TOKEN.sub(replace, definition)


def make_name(like: str, taken: set[str]) -> str:
    random = Random(like)
    while (made := re.sub(r"[A-Za-z]+", lambda part: make_word(part[0], random), like)) in taken:
        pass
    return made


def redact_headers(headers: Json) -> Json:
    """Hide the values of headers that carry secrets, unless the recording did."""
    return [redact_header(header) for header in headers] if isinstance(headers, list) else headers


def redact_header(header: Json) -> Json:
    match header:
        case [str(name), str(value)] if name.lower() in SECRET_HEADERS and "<REDACTED" not in value:
            scheme, space, secret = value.rpartition(" ")
            return [name, f"{scheme}{space}<REDACTED len={len(secret)}>"]
        case _:
            return header


def redact_query(query: Json) -> Json:
    if not isinstance(query, str):
        return query
    return SECRET_PARAMETER.sub(lambda found: f"{found[1]}<REDACTED len={len(found[2])}>", query)


def anonymise_folder(source: Path, target: Path) -> str:
    """Write every capture below `source` to `target` and return a summary; raises ValueError."""
    anonymiser, size = Anonymiser(), 0
    files = sorted(source.glob("*/*.json"))
    for file in files:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{file} has more than {MAX_BYTES} bytes")
        capture = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(capture, dict) or "path" not in capture:
            raise ValueError(f"{file} is not a capture: it has no path")
        made = json.dumps(anonymiser.replace_capture(capture), indent=1, ensure_ascii=False) + "\n"
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(made, encoding="utf-8")
        size += len(made.encode())
    if not files:
        raise ValueError(f"{source} contains no captures (CLIENT/NN-ENDPOINT.json)")
    clients = len({file.parent for file in files})
    return f"{len(files)} captures of {clients} clients, {anonymiser.texts} texts replaced, {size // 1024} KB"


def main() -> int:
    parser = argparse.ArgumentParser(description="Replace the texts in captured requests by generated ones.")
    parser.add_argument("source", type=Path, help="folder with CLIENT/NN-ENDPOINT.json")
    parser.add_argument("target", type=Path, help="folder to write to, with the same names")
    arguments = parser.parse_args()
    try:
        print(anonymise_folder(arguments.source, arguments.target))
    except (OSError, ValueError, RecursionError) as problem:
        print(f"Cannot anonymise: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

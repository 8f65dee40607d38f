"""Parsers skip what reads the settings of a request that has none: they must know every field that it reads."""

from collections.abc import Callable

import pytest

from dragoman.translate.framing.fields import Fields
from dragoman.translate.protocols.chat.parse import SETTINGS as CHAT
from dragoman.translate.protocols.chat.parse import parse_settings as parse_chat
from dragoman.translate.protocols.gemini.parse import ATTRIBUTION, GENERATION, parse_attribution, parse_generation
from dragoman.translate.protocols.gemini.parse_fields import ProtoFields
from dragoman.translate.protocols.messages.parse import SETTINGS as MESSAGES
from dragoman.translate.protocols.messages.parse import parse_settings as parse_messages
from dragoman.translate.protocols.responses.parse import SETTINGS as RESPONSES
from dragoman.translate.protocols.responses.parse import parse_settings as parse_responses

Raw = dict[str, object]


class EmptyObject(Raw):
    """An empty object that notes which of its fields are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        self.looked_up.add(key)
        return default


@pytest.mark.parametrize(
    ("known", "parse"),
    [
        pytest.param(CHAT, lambda raw: parse_chat(Fields(raw)), id="chat"),
        pytest.param(MESSAGES, lambda raw: parse_messages(Fields(raw), ()), id="messages"),
        pytest.param(RESPONSES, lambda raw: parse_responses(Fields(raw), {}), id="responses"),
        pytest.param(GENERATION, lambda raw: parse_generation(ProtoFields(raw), 1), id="gemini"),
        pytest.param(ATTRIBUTION, lambda raw: parse_attribution(ProtoFields(raw)), id="gemini-attribution"),
    ],
)
def test_every_setting_that_is_read_is_known(known: frozenset[str], parse: Callable[[Raw], object]) -> None:
    raw = EmptyObject()
    parse(raw)
    assert raw.looked_up
    assert raw.looked_up <= known

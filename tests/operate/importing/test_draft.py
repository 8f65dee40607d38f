"""The file that is being made: names of variables and providers."""

import pytest

from dragoman.operate.importing.draft import Draft, Unresolved
from dragoman.operate.importing.source_values import Report, SourceValue


def test_equal_secrets_share_a_variable_and_names_of_providers_are_unique() -> None:
    draft = Draft({"SET": "x"})
    report = Report()
    first, same, other = (SourceValue(text, report, (text,)) for text in ("a-secret", "a-secret", "b-secret"))
    assert [draft.take_secret(value, "KEY") for value in (first, same, other)] == ["env:KEY", "env:KEY", "env:KEY_2"]
    assert draft.take_secret(first, "1 key") == "env:KEY_1_KEY"
    assert draft.add_provider("claude-code", {"kind": "a"}) == "claude-code-2"
    assert [draft.add_provider("a b", {"kind": kind}) for kind in "xyx"] == ["a-b", "a-b-2", "a-b"]
    assert draft.read_value(SourceValue("$SET", report)) == "x"
    with pytest.raises(Unresolved, match=r"\$GONE"):
        draft.read_value(SourceValue("env.GONE", report, ("endpoint",)))

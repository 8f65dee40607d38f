"""`paths` of a provider: what it adds, how it may be spelled, and the messages about mistakes."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError

COMPATIBLE = '[providers.up]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:1/v1"\n'


def read_paths(directory: Path, text: str) -> tuple[str, ...]:
    (directory / "dragoman.toml").write_text(text)
    return ConfigSource(None, {}, directory, directory).read().providers["up"].paths


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (COMPATIBLE, ("embeddings", "completions")),
        (COMPATIBLE + "paths = []\n", ()),
        (COMPATIBLE + 'paths = "moderations"\n', ("embeddings", "completions", "moderations")),
        (COMPATIBLE + 'paths = ["/v1/rerank", "rerank"]\n', ("embeddings", "completions", "rerank")),
        (
            COMPATIBLE + 'paths = ["audio"]\n',
            ("embeddings", "completions", "audio/speech", "audio/transcriptions", "audio/translations"),
        ),
        (COMPATIBLE + 'protocol = "messages"\n', ()),
        (COMPATIBLE + 'protocol = ["messages", "responses"]\n', ("embeddings", "completions")),
        ('[providers.up]\nkind = "openai"\n', ("embeddings", "completions")),
        ('[providers.up]\nkind = "anthropic"\n', ()),
        ('[providers.up]\nkind = "echo"\n', ()),
    ],
)
def test_a_provider_serves_the_default_paths_and_those_listed(
    tmp_path: Path, text: str, paths: tuple[str, ...]
) -> None:
    assert read_paths(tmp_path, text) == paths


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (COMPATIBLE + 'paths = ["embedings"]\n', '"embeddings"'),
        (COMPATIBLE + 'paths = ["files"]\n', "files"),
        (COMPATIBLE + "paths = [7]\n", "paths"),
        (COMPATIBLE + "paths = 7\n", "paths"),
        ('[providers.up]\nkind = "kiro"\npaths = ["rerank"]\n', 'of kind "openai", "openai-compatible"'),
    ],
)
def test_a_wrong_path_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_paths(tmp_path, text)
    [problem] = caught.value.problems
    assert "providers.up.paths" in str(problem)
    assert complaint in str(problem), str(problem)

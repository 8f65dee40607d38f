"""The banner of a start, without a process."""

from pathlib import Path

import pytest

from dragoman.cli.serving.startup import Keys, render_banner
from dragoman.config.load import ConfigSource
from dragoman.operate.configuration.effective import GatewayTarget

PROXY_LINE = "  the one in $PROXY_API_KEY; set DRAGOMAN_API_KEY to its value for the lines below"


@pytest.mark.parametrize(
    ("variable", "line"),
    [("DRAGOMAN_API_KEY", "  the one in $DRAGOMAN_API_KEY"), ("PROXY_API_KEY", PROXY_LINE)],
)
def test_the_banner_names_the_variable_that_the_key_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, line: str
) -> None:
    for name in ("DRAGOMAN_API_KEY", "PROXY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "fake-key-from-outside")
    config = ConfigSource(None, {variable: "fake-key-from-outside"}, tmp_path, tmp_path).read()
    banner = render_banner(config, GatewayTarget("http://127.0.0.1:8484"), Keys(None, 0, has_environment_key=True))
    assert line in banner.splitlines()
    assert "fake-key-from-outside" not in banner

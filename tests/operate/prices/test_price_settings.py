"""The price sheet is up to date, and prices of the configuration are read."""

import runpy
from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config, PriceOverride

ROOT = Path(__file__).parents[3]


def load_config(directory: Path, toml: str) -> Config:
    (directory / "dragoman.toml").write_text(toml)
    return ConfigSource(None, {}, directory, directory).read()


def test_the_price_sheet_is_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "write_prices.py"))
    assert (ROOT / "src" / "dragoman" / "operate" / "prices" / "sheet.json").read_text() == tool["render_sheet"]()


def test_prices_are_read(tmp_path: Path) -> None:
    toml = '[[prices]]\nmodel = "local/*"\ninput = 0.5\noutput = 2\n[[prices]]\nmodel = "a"\ninput = 1\noutput = 1\n'
    config = load_config(tmp_path, toml + "cache_read = 0.1\ncache_write = 1.25\ncache_write_1h = 2\n")
    a = PriceOverride("a", 1.0, 1.0, 0.1, 1.25, cache_write_1h=2.0)
    assert config.prices == (PriceOverride("local/*", 0.5, 2.0), a)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[[prices]]\nmodel = "a"\ninput = 1\n', '"output" is missing'),
        ('[[prices]]\nmodel = "a"\ninput = 1\noutput = 1\ncache_reed = 1\n', "cache_read"),
        ('[[prices]]\nmodel = "a"\ninput = -1\noutput = 1\n', "prices"),
        ('[[prices]]\nmodel = "a"\ninput = "1"\noutput = 1\n', "prices"),
        ('[prices]\nmodel = "a"\n', "[[prices]]"),
    ],
)
def test_an_invalid_price_is_named(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path, toml)
    assert message in str(refused.value)
    assert "dragoman.toml" in str(refused.value)

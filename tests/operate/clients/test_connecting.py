"""Recipes for clients: what they merge into an empty file, and which model they choose."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate.clients.connecting import RECIPES, Recipe
from dragoman.operate.clients.launching import choose_model
from dragoman.operate.clients.written_settings import combine
from dragoman.operate.configuration.effective import GatewayTarget
from dragoman.translate.protocols import PROTOCOLS

TARGET = GatewayTarget("http://127.0.0.1:8484", "echo")
FILES = [pytest.param(recipe, id=name) for name, recipe in RECIPES.items() if recipe.file is not None]


def config_in(directory: Path, toml: str) -> Config:
    (directory / "dragoman.toml").write_text(toml)
    return ConfigSource(None, {}, directory, directory).read()


def no_list() -> list[str]:
    raise AssertionError("no provider needs to list its models")


@pytest.mark.parametrize("recipe", [pytest.param(recipe, id=name) for name, recipe in RECIPES.items()])
def test_every_recipe_names_the_gateway_and_a_protocol_and_has_a_file_or_a_reason(recipe: Recipe) -> None:
    assert TARGET.root in "\n".join(recipe.lines(TARGET))
    assert recipe.protocol in PROTOCOLS
    assert (recipe.file is None) == bool(recipe.why_no_file)


@pytest.mark.parametrize("recipe", FILES)
def test_merging_twice_changes_nothing_more(recipe: Recipe, tmp_path: Path) -> None:
    assert recipe.file is not None
    format = recipe.file.format
    settings = format.prepare(combine(recipe.file.settings(TARGET), recipe.file.defaults(TARGET)))
    once = format.merge("", settings)
    assert TARGET.root in once
    assert format.merge(once, settings) == once
    assert recipe.file.find({}, tmp_path).is_relative_to(tmp_path)


def test_a_configured_model_is_chosen_without_a_request_to_any_provider(tmp_path: Path) -> None:
    config = config_in(tmp_path, '[[models]]\nname = "fast"\nto = ["echo/echo"]\n')
    assert choose_model(RECIPES["codex"], config, None, no_list) == "fast"


def test_the_model_of_the_file_stays_if_the_gateway_serves_it(tmp_path: Path) -> None:
    section = '[providers.up]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:9/v1"\n'
    config = config_in(tmp_path, section)
    assert choose_model(RECIPES["codex"], config, "up/b", lambda: ["up/a", "up/b"]) == "up/b"
    assert choose_model(RECIPES["codex"], config, "gone", lambda: ["up/a", "up/gpt-5"]) == "up/gpt-5"
    assert choose_model(RECIPES["codex"], config, None, list) is None

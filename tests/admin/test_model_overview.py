"""Models as a running gateway offers them; more over HTTP in tests/http_api/test_state_api.py."""

import time
from pathlib import Path

from dragoman.admin.model_overview import describe_models
from gateway import running

TOML = """
[providers.echo]
kind = "echo"
[[models]]
name = "any"
to = ["echo/echo", "gone/x"]
"""


def test_a_target_that_cools_down_shows_until_when(tmp_path: Path) -> None:
    now = time.time()
    with running(TOML.replace(', "gone/x"', ""), tmp_path) as gateway:
        runtime = gateway.app.gateway.runtime
        cooldowns = runtime.providers["echo"].account.cooldowns
        assert cooldowns is not None
        cooldowns.start_cooldown(0, "echo", now + 60, "quota", now)
        overview = describe_models(runtime, None, now)
        [[target]] = [route.targets for route in overview.routes]
        assert target.cooling_down_until == now + 60
        assert describe_models(runtime, None, now + 61).routes[0].targets[0].cooling_down_until is None
        assert {model.usd_per_million for model in overview.models} == {None}

"""A warning is posted as JSON, tried again after a failure, and logged if it is not taken."""

import logging

import msgspec
import pytest

from dragoman.config.secret import SecretSource, resolve_secret
from dragoman.net.client import HttpClient
from dragoman.operate.limit_webhook import TRIES, LimitWebhook
from dragoman.tenancy.limit_watch import LimitWarning
from fakes.service import json_answer
from fakes.upstream import Answer, FakeUpstream

WARNING = LimitWarning(
    scope="key:1", title='the key "laptop"', limit="usd_per_day", percent=75, value=10, spent=8, resets_at=None
)


@pytest.mark.parametrize(
    ("answers", "posts"),
    [
        ([json_answer({}, 204)], 1),
        ([json_answer({}, 500), json_answer({})], 2),
        ([json_answer({}, 302, (("location", "/elsewhere"),))], TRIES),
    ],
)
async def test_a_warning_is_posted_until_it_is_taken(
    answers: list[Answer], posts: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with FakeUpstream() as hook:
        hook.answers = answers
        async with HttpClient() as http:
            await LimitWebhook(http, lambda: f"{hook.url}/budget", pause_s=0)(WARNING)
    assert [request.json for request in hook.requests] == [msgspec.to_builtins(WARNING)] * posts
    assert ("did not accept the warning at 75 %: HTTP 302" in caplog.text) == (posts == TRIES)


async def test_without_a_webhook_nothing_is_posted_and_a_closed_port_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with HttpClient() as http:
        await LimitWebhook(http, lambda: None)(WARNING)
        assert caplog.text == ""
        await LimitWebhook(http, lambda: "http://127.0.0.1:1/", pause_s=0)(WARNING)
        assert "did not accept the warning" in caplog.text
        source = SecretSource("env:BUDGET_HOOK", "limits.webhook")
        await LimitWebhook(http, lambda: resolve_secret(source, {}).reveal())(WARNING)
    assert "the warning at 75 % is not sent" in caplog.text
    assert "BUDGET_HOOK is not set" in caplog.text

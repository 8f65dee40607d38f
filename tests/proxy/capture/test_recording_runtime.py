"""A recorded runtime leaves the real one alone, and what a capture says of the tools has no secrets."""

from msgspec.structs import replace

from dragoman.config.secret import SecretSource
from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.proxy.capture.recording_runtime import describe_backends, describe_tools, record_runtime
from dragoman.server_tools.backends import ChosenBackends, McpServers, UnusableFetch, UnusableSearch, make_plan
from proxy.capture.recordings import make_recording
from proxy.in_memory import make_call, make_pooled, make_provider, make_world

CHOSEN = ChosenBackends(UnusableSearch("index"), UnusableFetch("library"), McpServers(), (b"sk-canary-1234",))
PLAN = make_plan(CHOSEN, frozenset(), Tools())


def test_a_recorded_runtime_leaves_the_real_one_alone() -> None:
    runtime = replace(make_world(make_pooled(make_provider("one"), 2), make_provider("two")), tool_plans={"two": PLAN})
    recording = make_recording()
    recorded = record_runtime(runtime, recording, make_call())
    one, two = recorded.providers["one"], recorded.providers["two"]
    assert one.account.chooser is not None
    assert one.account.pool is runtime.providers["one"].account.pool
    assert len(one.members) == 2
    assert two.account.chooser is None
    assert runtime.providers["one"].account.chooser is None
    assert runtime.tool_plans["two"] is PLAN
    sends = {provider.endpoint.send for provider in (one, *one.members, two)}
    assert len(sends) == 4
    assert runtime.providers["two"].endpoint.send not in sends
    assert b"sk-canary-1234" in recording.secrets


def test_the_settings_in_a_capture_have_no_secrets_addresses_or_commands() -> None:
    search = WebSearch(("mcp",), "https://host.example/", SecretSource("sk-canary"), command=("run", "--key", "canary"))
    described = describe_tools(Tools(search, WebFetch(max_chars=7)))
    assert "canary" not in str(described)
    assert "host.example" not in str(described)
    assert "'max_chars': 7" in str(described["web_fetch"])
    assert describe_backends(PLAN) == {"web_search": "index", "web_fetch": "library"}

"""`dragoman import`: the file that it makes is served, and what it prints contains no secret."""

from pathlib import Path

from asking import send
from fakes.upstream import FakeUpstream
from scripting import write_reply
from shell import Shell

SECRET = "fake-secret-4711"


def test_a_gateway_serves_what_was_imported(shell: Shell) -> None:
    with FakeUpstream(choose=lambda request: write_reply("chat", "Fine.", stream=False)) as fake:
        params = f'{{model: openai/m, api_base: "{fake.url}/v1", api_key: {SECRET}}}'
        shell.write("litellm.yaml", f"model_list: [{{model_name: smart, litellm_params: {params}}}]\nother: 1\n")
        done = shell.run("import", "litellm.yaml", "--json")
        assert done.code == 0, done.err
        assert done.json == {
            "gateway": "LiteLLM",
            "source": "litellm.yaml",
            "file": str(shell.home / "dragoman.toml"),
            "fields": [
                {"path": "model_list[0].litellm_params.api_key", "setting": "providers.smart.api_key", "reason": ""},
                {"path": "model_list[0].litellm_params.api_base", "setting": "providers.smart.endpoint", "reason": ""},
                {"path": "model_list[0].model_name", "setting": "models.name", "reason": ""},
                {"path": "model_list[0].litellm_params.model", "setting": "models.to", "reason": ""},
                {"path": "other", "setting": "", "reason": "dragoman has no such setting"},
            ],
            "exports": [{"name": "SMART_API_KEY", "field": "model_list[0].litellm_params.api_key"}],
        }
        shell.environ["SMART_API_KEY"] = SECRET
        with shell.serve() as served:
            body = {"model": "smart", "messages": [{"role": "user", "content": "Hi"}]}
            assert send(served, "POST", "/v1/chat/completions", body, key=served.key).status == 200
        [call] = fake.calls
        assert call.headers["authorization"] == f"Bearer {SECRET}"
        assert call.json["model"] == "m"


def test_it_prints_names_and_never_values_and_never_overwrites(shell: Shell) -> None:
    shell.write(".env", f"PROXY_API_KEY={SECRET}-1\nREFRESH_TOKEN={SECRET}-2\nLOG_LEVEL=INFO\n")
    done = shell.run("import", ".")
    assert done.code == 0, done.err
    assert "export REFRESH_TOKEN=…" in done.err
    assert "export DRAGOMAN_API_KEY=…   # the value of PROXY_API_KEY" in done.err
    assert "1 field left out" in done.err
    written = Path(shell.home / "dragoman.toml").read_text()
    assert SECRET not in done.out + done.err + written
    again = shell.run("import", ".")
    assert (again.code, "already exists" in again.err) == (1, True)
    assert Path(shell.home / "dragoman.toml").read_text() == written
    assert shell.run("import").code == 2
    assert shell.run("import", "none").code == 1

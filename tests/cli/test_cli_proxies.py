"""The proxies of the environment apply to every provider whose section names no other."""

from asking import ask
from fakes.upstream import FakeUpstream
from gateway import KEY
from scripting import write_reply
from shell import Served, Shell

REPLY = write_reply("chat", "Led here.", stream=False)
SECTION = '[providers.{0}]\nkind = "openai-compatible"\nendpoint = "{1}"\nmodels = ["m"]\n'


def status(served: Served, model: str) -> int:
    return ask(served, "chat", model).status


def test_the_environments_proxy_is_used_except_for_exempt_hosts(shell: Shell) -> None:
    with FakeUpstream([REPLY]) as proxy, FakeUpstream([REPLY]) as near:
        far = SECTION.format("far", "http://upstream.test/v1")
        # Nothing listens there, and no name must be resolved to find that out.
        straight = SECTION.format("straight", "http://0.0.0.0:1/v1") + 'proxy = "none"\n'
        exempt = SECTION.format("exempt", "http://0.0.0.0:1/v1")
        path = shell.write(
            "led.toml", "[retry]\nattempts = 1\n" + far + straight + exempt + SECTION.format("near", near.url)
        )
        environ = {
            "HTTP_PROXY": f"http://me:fake-password@127.0.0.1:{proxy.port}",
            "NO_PROXY": "other.test,0.0.0.0:1",
            "DRAGOMAN_API_KEY": KEY,
        }
        with shell.serve("--config", str(path), **environ) as served:
            assert status(served, "far/m") == 200
            assert status(served, "near/m") == 200
            assert status(served, "exempt/m") == 502
            assert status(served, "straight/m") == 502
            assert served.end() == 0
        led = {request.path for request in proxy.calls}
        assert led == {"http://upstream.test/v1/chat/completions"}
        assert proxy.calls[0].headers["proxy-authorization"].startswith("Basic ")
        assert [request.path for request in near.calls] == ["/v1/chat/completions"]
        assert "fake-password" not in served.out + served.err

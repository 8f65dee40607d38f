"""The proxies of the environment apply to every provider whose section names no other."""

import urllib.error
import urllib.request

import msgspec

from fakes.service import json_answer
from fakes.upstream import FakeUpstream
from shell import Served, Shell

KEY = "dgm_fake-client-key-behind-a-proxy"
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Led here."}, "finish_reason": "stop"}],
}
SECTION = '[providers.{0}]\nkind = "openai-compatible"\nendpoint = "{1}"\nmodels = ["m"]\n'


def status(served: Served, model: str) -> int:
    body = msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": "Hi"}]})
    head = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(f"{served.url}/v1/chat/completions", body, head)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_environments_proxy_is_used_except_for_exempt_hosts(shell: Shell) -> None:
    with FakeUpstream(choose=lambda request: json_answer(REPLY)) as proxy, FakeUpstream() as near:
        near.choose = proxy.choose
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

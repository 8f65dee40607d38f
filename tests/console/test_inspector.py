"""The inspector of a captured request: its images, and its pauses to scale."""

import base64
import http.client
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from console.screen import screen
from console.traffic import make_capturing_config
from gateway import KEY, Running, provider_section, running

RETRY = "[retry]\nattempts = 3\nbase_s = 0.4\n"


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(range(3 * width)) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


IMAGE = base64.b64encode(png(60, 40)).decode()
PARTS: dict[str, list[object]] = {
    "/v1/chat/completions": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}],
    "/v1/messages": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("inspector"))
    routes = '[[models]]\nname = "second-choice"\nto = ["up/model", "echo/echo"]\n'
    toml = (
        make_capturing_config(directory / "captures")
        + provider_section("chat", "http://127.0.0.1:9/v1")
        + RETRY
        + routes
    )
    with running(toml, directory, stored=["laptop"]) as started:
        for path, parts in PARTS.items():
            send(started, path, "echo", parts, f"image-{path.rpartition('/')[2]}")
        send(started, "/v1/messages", "second-choice", "Hello", "failover")
        yield started


def send(gateway: Running, path: str, model: str, content: object, request_id: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    body = {"model": model, "max_tokens": 10, "stream": True, "messages": [{"role": "user", "content": content}]}
    headers = {"x-api-key": KEY, "content-type": "application/json", "x-request-id": request_id}
    connection.request("POST", path, msgspec.json.encode(body), headers)
    assert connection.getresponse().read()
    connection.close()
    gateway.capture(request_id)


@pytest.mark.parametrize("name", ["completions", "messages"])
def test_an_image_is_its_kind_and_size_and_is_drawn_on_request(chromium: Browser, gateway: Running, name: str) -> None:
    with screen(chromium, gateway) as tab:
        tab.open(f"inspect/image-{name}")
        request = tab.page.get_by_role("region", name="Request as the client sent it")
        expect(request).to_contain_text("image/png, ")
        assert IMAGE not in tab.page.locator("main").inner_text()
        assert tab.page.locator("img").count() == 0
        request.get_by_role("button", name="Show the image").click()
        image = request.get_by_role("img", name="Image of the request, image/png")
        assert image.evaluate("e => e.decode().then(() => [e.naturalWidth, e.src.split(':')[0]])") == [60, "blob"]
        tab.keep(f"inspect-image-{name}")
        tab.check_page(name)


def test_pauses_are_drawn_to_one_scale_and_refusals_are_listed(chromium: Browser, gateway: Running) -> None:
    with screen(chromium, gateway) as tab:
        tab.open("inspect/failover")
        heights = tab.page.locator("svg.pause").evaluate_all("bars => bars.map(e => e.getBoundingClientRect().height)")
        times = [request.at for request in gateway.capture("failover").upstream_requests]
        gaps = [later - earlier for earlier, later in pairwise(times) if later - earlier > 0.05]
        assert len(gaps) == 2
        shorter, longer = sorted(heights)[-2:]  # a busy machine may pause elsewhere too, but not for so long
        assert shorter / longer == pytest.approx(min(gaps) / max(gaps), rel=0.2)
        expect(tab.page.get_by_role("listitem").filter(has_text="up/model")).to_have_count(3)
        expect(tab.page.locator("main")).to_contain_text("Connection refused")

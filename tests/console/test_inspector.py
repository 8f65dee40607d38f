"""The inspector of a captured request: its images, and its pauses to scale."""

import base64
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect

from asking import ask
from console.screen import Screen
from console.traffic import make_capturing_config
from dragoman.operate.captures.timeline import build_timeline
from gateway import Running, provider_section, running

RETRY = "[retry]\nattempts = 3\nbase_s = 0.3\n"


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(range(3 * width)) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


IMAGE = base64.b64encode(png(60, 40)).decode()
PARTS: dict[str, list[object]] = {
    "chat": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}],
    "messages": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}],
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
        for protocol, parts in PARTS.items():
            send(started, protocol, "echo", parts, f"image-{protocol}")
        send(started, "messages", "second-choice", "Hello", "failover")
        yield started


def send(gateway: Running, protocol: str, model: str, content: object, request_id: str) -> None:
    messages = [{"role": "user", "content": content}]
    assert ask(gateway, protocol, model, stream=True, headers={"x-request-id": request_id}, messages=messages).body
    gateway.capture(request_id)


@pytest.mark.parametrize("name", ["messages", pytest.param("chat", marks=pytest.mark.rest)])
def test_an_image_is_its_kind_and_size_and_is_drawn_on_request(tab: Screen, name: str) -> None:
    tab.open(f"inspect/image-{name}")
    request = tab.page.get_by_role("region", name="Request as the client sent it")
    expect(request).to_contain_text("image/png, ")
    assert IMAGE not in tab.page.locator("main").inner_text()
    assert tab.page.locator("img").count() == 0
    request.get_by_role("button", name="Show the image").click()
    image = request.get_by_role("img", name="Image of the request, image/png")
    assert image.evaluate("e => e.decode().then(() => [e.naturalWidth, e.src.split(':')[0]])") == [60, "blob"]
    tab.keep(f"inspect-image-{name}")
    if name == "messages":  # the page is the same for both
        tab.check_page(name)


def test_the_reason_for_a_translation_is_a_fact(tab: Screen, gateway: Running) -> None:
    assert gateway.capture("image-chat").why.startswith("translated; the provider speaks ")
    tab.open("inspect/image-chat")
    expect(tab.page.locator("dl.facts")).to_contain_text("Why was this translated?the provider speaks ")


def test_pauses_are_drawn_to_one_scale_and_refusals_are_listed(tab: Screen, gateway: Running) -> None:
    tab.open("inspect/failover")
    expect(tab.page.get_by_role("table", name="Timeline of the request")).to_contain_text("message_stop")
    read = gateway.capture("failover")
    assert read.upstream_chunks > 0
    expect(tab.page.locator("dl.facts")).to_contain_text(f"in {read.upstream_chunks} chunk")
    heights = tab.page.locator("svg.pause").evaluate_all("bars => bars.map(e => e.getBoundingClientRect().height)")
    times = [entry.at for entry in build_timeline(gateway.capture("failover"))]
    second, longest = sorted(later - earlier for earlier, later in pairwise(times))[-2:]
    lower, highest = sorted(heights)[-2:]
    assert lower / highest == pytest.approx(second / longest, rel=0.1)
    expect(tab.page.get_by_role("listitem").filter(has_text="up/model")).to_have_count(3)
    expect(tab.page.locator("main")).to_contain_text("Connection refused")

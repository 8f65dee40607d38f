"""Media are estimated by kind and size with the vendors' formulas, never by their base64 as text."""

import base64
import random

import msgspec
import pytest

from dragoman.translate.framing.media_header import image_size, media_kind
from dragoman.translate.hub.request import (
    Audio,
    Document,
    Foreign,
    Image,
    Inline,
    Part,
    Request,
    Role,
    Text,
    ToolResult,
    Turn,
)
from dragoman.translate.profiles.token_count import (
    IMAGE_TOKENS,
    MAX_PAGES,
    PAGE_TOKENS,
    count_media_tokens,
    estimate_body_tokens,
    estimate_request_tokens,
)
from media_files import gif, jpeg, pdf, png, wav, webp

IMAGES = {
    "png": png(640, 480),
    "gif": gif(640, 480),
    "jpeg": jpeg(640, 480),
    "jpeg with a preview": jpeg(640, 480, 200_000),
    "webp": webp(640, 480),
    "lossless webp": webp(640, 480, b"VP8L"),
    "lossy webp": webp(640, 480, b"VP8 "),
}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def make_request(*parts: Part, model: str = "m") -> Request:
    return Request("messages", model, (Turn(Role.USER, (Text("hi"), *parts)),))


def count_request(request: Request) -> int:
    return estimate_request_tokens(request, request.model)


PLAIN = count_request(make_request())


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_counts_by_the_size_in_its_header(name: str) -> None:
    assert image_size(IMAGES[name]) == (640, 480)
    assert count_media_tokens(b64(IMAGES[name]).encode(), "claude-x") == 410  # 640 x 480 / 750
    assert count_media_tokens(b64(IMAGES[name]).encode(), "gpt-x") == 85 + 170 * 2
    assert count_media_tokens(b64(IMAGES[name]).encode(), "gemini-x") == 258


@pytest.mark.parametrize(
    ("size", "claude", "openai"),
    [
        ((1, 1), 1, 255),
        ((200, 200), 54, 255),
        ((1024, 1024), 1399, 765),  # OpenAI's own example
        ((2048, 4096), 1600, 1105),  # OpenAI's own example
        ((100_000, 100_000), 1600, 765),
        ((100_000, 10), 3, 765),
    ],
)
def test_large_images_are_scaled_down_as_the_vendors_do(size: tuple[int, int], claude: int, openai: int) -> None:
    data = b64(png(*size)).encode()
    assert count_media_tokens(data, "claude-x") == claude
    assert count_media_tokens(data, "gpt-x") == openai
    assert count_media_tokens(data, "gpt-x", "low") == 85


def test_the_size_of_the_file_does_not_matter_for_an_image() -> None:
    small, large = (
        count_request(make_request(Image(Inline("image/png", b64(png(800, 600, size)))))) for size in (0, 300_000)
    )
    assert small == large < PLAIN + IMAGE_TOKENS


def test_a_pdf_counts_by_its_pages_or_else_by_its_size() -> None:
    assert count_media_tokens(b64(pdf(3, 500_000)).encode(), "m") == 3 * PAGE_TOKENS
    assert count_media_tokens(b64(b"%PDF-1.7" + b"x" * 299_992).encode(), "m") == 4 * PAGE_TOKENS
    assert count_media_tokens(b64(pdf(999_999)).encode(), "m") == MAX_PAGES * PAGE_TOKENS


def test_a_recording_counts_by_its_duration_or_else_by_its_size() -> None:
    recording = Audio(Inline("audio/wav", b64(wav(30))), "")
    assert count_request(make_request(recording)) - PLAIN == pytest.approx(300, abs=2)
    compressed = Audio(Inline("audio/mp3", b64(b"ID3" + bytes(160_000))), "")
    assert count_request(make_request(compressed)) - PLAIN == pytest.approx(100, abs=2)


@pytest.mark.parametrize("raw", ["data:image/png;base64,", ""])
def test_files_inside_unknown_parts_count_as_media(raw: str) -> None:
    data = raw + b64(png(640, 480, 300_000))
    foreign = Foreign("computer_call_output", {"output": {"type": "screenshot", "image_url": data}})
    assert count_request(make_request(foreign)) - PLAIN < 600
    words = Foreign("new_thing", {"text": "word " * 1000})
    assert count_request(make_request(words)) - PLAIN > 900


def test_an_image_in_a_tool_result_counts_as_one() -> None:
    image = Image(Inline("image/png", b64(png(640, 480, 300_000))))
    assert count_request(make_request(ToolResult("c", (image,)))) == count_request(make_request(image))


def test_the_correction_for_claude_is_for_text_alone() -> None:
    image = Image(Inline("image/png", b64(png(640, 480))))
    assert (
        estimate_request_tokens(make_request(image), "claude-x")
        == estimate_request_tokens(make_request(), "claude-x") + 410
    )


def test_a_body_is_estimated_by_its_text_and_its_media_separately() -> None:
    text = "word " * 400
    for part in (
        {"type": "image", "source": {"type": "base64", "data": b64(png(640, 480, 300_000))}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64(png(640, 480, 300_000))}},
        {"type": "x", "data": "data:image/png;base64," + b64(png(640, 480, 300_000))},
    ):
        body = msgspec.json.encode({"model": "claude-x", "messages": [{"role": "user", "content": [text, part]}]})
        assert 500 + 410 <= estimate_body_tokens(body, "claude-x") <= 600 + 410
    plain = msgspec.json.encode({"data": "not a file at all, but a long text of words. " * 40})
    assert estimate_body_tokens(plain, "m") == len(plain) // 4


def test_a_text_document_counts_as_its_text() -> None:
    document = Document(Inline("text/plain", b64(b"word " * 4000)))
    assert count_request(make_request(document)) - PLAIN == pytest.approx(5000, rel=0.01)


def test_any_bytes_get_an_estimate() -> None:
    chance = random.Random(22)
    files = [*IMAGES.values(), pdf(3), wav(1)]
    for _ in range(3000):
        data = bytearray(chance.choice(files)[: chance.randrange(1, 2000)])
        for _ in range(chance.randrange(8)):
            at = chance.randrange(len(data))
            data[at : at + 2] = chance.randbytes(2)
        assert media_kind(bytes(data))
        encoded = b64(bytes(data)).encode()[chance.randrange(3) :]
        assert 0 <= count_media_tokens(encoded, chance.choice(["claude", "gpt", "gemini"])) <= MAX_PAGES * PAGE_TOKENS

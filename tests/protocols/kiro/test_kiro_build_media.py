"""Images and documents for Kiro: sent beside the text where it takes them, refused where it does not."""

import base64

import pytest

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Document, Image, Inline, Link, Text
from dragoman.protocols.kiro.build_turns import needs_inline
from dragoman.protocols.kiro.wire import MAX_IMAGE_BYTES, MAX_IMAGES
from protocols.kiro.kiro_requests import answer, ask, chat, expect_refusal, make_calls, messages, parse_body, tool, user
from wire_json import JsonObject

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}}


def image_url(url: str, **fields: object) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def document(media_type: str, data: bytes) -> JsonObject:
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, "title": "a.txt"}


def test_a_jpg_is_a_jpeg_without_the_prefix_of_its_url() -> None:
    built = ask("chat", chat(user({"type": "text", "text": "look"}, image_url("data:image/jpg;base64,AA=="))))
    assert built.current["images"] == [{"format": "jpeg", "source": {"bytes": "AA=="}}]
    assert b"data:" not in built.body


def test_a_prefix_inside_the_data_is_stripped_and_white_space_with_it() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "data:image/webp;base64,AA\nAA"}
    built = ask("messages", messages(user({"type": "image", "source": source})))
    assert built.current["images"] == [{"format": "webp", "source": {"bytes": "AAAA"}}]


def test_a_picture_without_text_gets_some() -> None:
    built = ask("messages", messages(user(PNG)))
    assert built.current["content"]
    assert "/messages/0" in built.invented


def test_a_linked_image_is_refused_by_name_and_with_advice_to_enable_fetching() -> None:
    body = chat(user({"type": "text", "text": "look"}, image_url("https://pictures.example/a.png")))
    failure = expect_refusal(lambda: ask("chat", body))
    assert failure.at == "/messages/0/content/1"
    assert needs_inline(Image(Link("https://pictures.example/a.png")))
    assert needs_inline(Document(Link("https://pictures.example/a.txt")))
    assert not needs_inline(Image(Inline("image/png", "AA==")))
    assert not needs_inline(Text("https://pictures.example/a.png"))


@pytest.mark.parametrize("media_type", ["image/bmp", "image/svg+xml", ""])
def test_an_image_of_another_format_is_refused_by_name(media_type: str) -> None:
    source = {"type": "base64", "media_type": media_type, "data": "AA=="}
    failure = expect_refusal(lambda: ask("messages", messages(user({"type": "image", "source": source}))))
    assert failure.at == "/messages/0/content/0"


def test_an_image_in_a_result_is_attached_to_its_message() -> None:
    content = [{"type": "text", "text": "see"}, PNG]
    built = ask("messages", messages(user("1"), make_calls("c"), user(answer("c", content)), tools=[tool()]))
    assert built.current["images"] == [{"format": "png", "source": {"bytes": "aW1n"}}]
    [result] = built.context["toolResults"]
    assert result["content"][0] == {"text": "see"}
    assert "aW1n" not in str(result)
    assert "/messages/2/content/0/content/1" in built.approximated


def test_images_of_the_history_stay_there() -> None:
    built = ask(
        "messages", messages(user(PNG, {"type": "text", "text": "1"}), {"role": "assistant", "content": "A"}, user("2"))
    )
    assert len(built.history[0]["images"]) == 1
    assert "images" not in built.current


def test_an_image_between_two_texts_loses_its_place() -> None:
    text = {"type": "text", "text": "x"}
    assert "/messages/0/content/1" in ask("messages", messages(user(text, PNG, text))).approximated
    assert not ask("messages", messages(user(PNG, text))).approximated


def test_the_level_of_detail_is_recorded_as_lost() -> None:
    url = "data:image/png;base64,AA=="
    built = ask("chat", chat(user({"type": "text", "text": "x"}, image_url(url, detail="high"))))
    assert any(path.startswith("/messages/0/content/1") and path.endswith("detail") for path in built.dropped)


def test_too_many_images_are_refused() -> None:
    assert ask("messages", messages(user(*[PNG] * MAX_IMAGES)))
    assert expect_refusal(lambda: ask("messages", messages(user(*[PNG] * (MAX_IMAGES + 1))))).at == "/messages/0"


def test_too_large_an_image_is_refused() -> None:
    data = "A" * (MAX_IMAGE_BYTES * 4 // 3 + 8)
    big = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert expect_refusal(lambda: ask("messages", messages(user(big)))).at == "/messages/0/content/0"


def test_a_text_document_is_sent_as_text() -> None:
    built = ask(
        "messages", messages(user(document("text/markdown", "# é".encode()), {"type": "text", "text": "sum up"}))
    )
    assert built.current["content"] == '<document title="a.txt">\n# é\n</document>\n\nsum up'
    assert "/messages/0/content/0" in built.approximated


def test_a_pdf_is_refused_by_name() -> None:
    failure = expect_refusal(lambda: ask("messages", messages(user(document("application/pdf", b"%PDF")))))
    assert failure.at == "/messages/0/content/0"
    assert "application/pdf" in failure.message


def test_a_document_that_is_no_text_is_refused() -> None:
    assert expect_refusal(lambda: ask("messages", messages(user(document("text/plain", b"\xff\xfe"))))).at


def test_a_file_id_is_refused() -> None:
    body = chat(user({"type": "text", "text": "x"}, {"type": "file", "file": {"file_id": "file-1"}}))
    assert parse_body("chat", body, Ledger())
    assert expect_refusal(lambda: ask("chat", body)).at == "/messages/0/content/1"


def test_audio_is_refused() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert (
        expect_refusal(lambda: ask("chat", chat(user(sound, {"type": "text", "text": "x"})))).at
        == "/messages/0/content/0"
    )

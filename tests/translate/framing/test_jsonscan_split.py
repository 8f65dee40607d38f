"""Splitting a document by the index of its items."""

import msgspec

from dragoman.translate.framing.jsonscan import split_by_index, split_frame
from dragoman.translate.framing.sse import Broken, Frame


def split(document: object) -> list[object]:
    return [msgspec.json.decode(part) for part in split_by_index(msgspec.json.encode(document), "items", 2)]


def test_each_document_has_the_items_of_one_index_as_number_0() -> None:
    items = [{"index": 1, "a": 1}, {"b": 2}, {"index": 1, "a": 3}]
    first, second = split({"id": "x", "items": items})
    assert first == {"id": "x", "items": [{"b": 2, "index": 0}]}
    assert second == {"id": "x", "items": [{"index": 0, "a": 1}, {"index": 0, "a": 3}]}


def test_a_list_is_split_item_by_item() -> None:
    assert split([{"items": [{"index": 1}]}, {"error": 1}]) == [
        [{"items": []}, {"error": 1}],
        [{"items": [{"index": 0}]}, {"error": 1}],
    ]


def test_what_has_no_such_items_stands_for_all() -> None:
    documents: tuple[object, ...] = ({"error": 1}, {"items": None}, {"items": [1]}, {"items": [{"index": "x"}]}, [], 5)
    for document in documents:
        assert split(document) == [document] * 2
    assert split_by_index(b"[DONE]", "items", 2) == [b"[DONE]"] * 2
    assert split_frame(Broken("why"), "items", 2) == [Broken("why")] * 2
    assert split_frame(Frame("error", b"{"), "items", 2) == [Frame("error", b"{")] * 2

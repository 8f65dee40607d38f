"""What a model has read of its tools, it reads again in every later turn: conversations of five turns."""

import base64
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.tool_conversations import (
    RESPONSES_TOOLS,
    UPSTREAMS,
    WAYS,
    Conversation,
    Hall,
    check,
    hold_messages,
    make_conversation,
    run_hall,
)
from scripting.replies import ScriptedReply, Stop, Text, ToolCall
from wire_json import JsonObject

AT_ONCE = 16


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    with run_hall(tmp_path_factory.mktemp("hall")) as shared:
        yield shared


def hold_all(hall: Hall, conversations: Sequence[Conversation]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(hall.hold, conversations):
            pass


def test_a_model_reads_what_it_has_read_before_in_every_later_turn(hall: Hall) -> None:
    conversations = [make_conversation(number) for number in range(len(UPSTREAMS) * len(WAYS))]
    hold_all(hall, conversations)
    check(conversations)


def talk(hall: Hall, number: int, way: str, upstream: str, *calls: ToolCall) -> Conversation:
    """Hold two turns: in the first, the model calls tools in one round each; in the second, it only answers."""
    place = f"http://docs.test/{number}"
    made = Conversation(number, upstream, way, stream=True)
    made.texts = [f"conversation-{number} read {place} {place}.pdf {place}.long {place}.gone", "And?"]
    rounds = [ScriptedReply((call,), Stop.TOOL) for call in calls]
    made.replies = [*rounds, ScriptedReply((Text("Done."),)), ScriptedReply((Text("Fine."),))]
    hall.hold(made)
    check([made])
    return made


def write_search(kind: str) -> ToolCall:
    return ToolCall("call_7", "web_search", f'{{"query": "{kind} pandas"}}')


def write_fetch(url: str) -> ToolCall:
    return ToolCall("call_8", "web_fetch", f'{{"url": "{url}"}}')


# What a tool returned -> what the model reads of it in every later turn
RETURNED = {
    "search": b"Text about search pandas.",
    "prose": "It is \u00e4 long story.".encode(),
    "words": b"There is no address of words pandas.",
    "nothing": b"The search found nothing.",
    "broken": b"Error (unavailable): mcp: the index of broken pandas is broken",
}
CITE = b"Cite what you use with Markdown links to its URL."


@pytest.mark.parametrize("way", ["messages", "previous"])
def test_what_a_search_returned_is_in_the_next_turn(hall: Hall, way: str) -> None:
    for number, (kind, expected) in enumerate(RETURNED.items(), 5_000 if way == "messages" else 5_100):
        made = talk(hall, number, way, "chat", write_search(kind))
        assert (expected in made.read[-1], made.tool_losses) == (True, []), kind
        assert (CITE in made.read[-1]) is (kind in ("search", "prose")), kind
        assert b"call_7" in made.read[-1], kind


@pytest.mark.parametrize("way", ["messages", "previous"])
@pytest.mark.parametrize("upstream", ["messages", "gemini"])
def test_a_pdf_that_was_fetched_is_in_the_next_turn(hall: Hall, way: str, upstream: str) -> None:
    number = 5_200 + 10 * WAYS.index(way) + UPSTREAMS.index(upstream)
    made = talk(hall, number, way, upstream, write_fetch(f"http://docs.test/{number}.pdf"))
    assert base64.b64encode(f"%PDF-1.7 /{number}.pdf".encode()) in made.read[-1]
    assert made.tool_losses == []


def test_a_pdf_that_the_model_cannot_read_is_noted_in_later_turns(hall: Hall) -> None:
    made = talk(hall, 5_300, "messages", "chat", write_fetch("http://docs.test/5300.pdf"))
    assert b"which this model cannot read" in made.read[-1]
    assert [how for _, how in made.tool_losses] == ["dropped"]


def test_a_page_that_was_cut_says_so_in_the_next_turn(hall: Hall) -> None:
    for number, way in enumerate(("messages", "previous"), 5_400):
        made = talk(hall, number, way, "chat", write_fetch(f"http://docs.test/{number}.long"))
        assert b"[The page is longer; this is its beginning.]" in made.read[-1], way


def test_two_rounds_of_calls_alone_stay_two_rounds(hall: Hall) -> None:
    made = talk(hall, 5_500, "messages", "chat", write_search("search"), write_search("prose"))
    assert [item["role"] for item in json.loads(made.read[-1])["messages"]] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "user"),
    ]


def test_what_a_client_does_not_give_back_is_noted(hall: Hall) -> None:
    """Some clients give back only the fields of a block that they know, or none that are opaque."""
    for number, kind in enumerate(RETURNED, 5_600):
        made = Conversation(number, "chat", "messages", stream=False)
        made.texts, call = [f"conversation-{number} ", "And?"], ScriptedReply((write_search(kind),), Stop.TOOL)
        made.replies = [call, ScriptedReply((Text("Done."),)), ScriptedReply((Text("Fine."),))]
        for damage, expected in ((b"dgm1.source2.", []), (b"dgm1.source2.AAAA", ["approximated"])):
            made.read.clear()
            made.losses.clear()
            hold_messages(hall, made, replacing=damage)
            assert [how for _, how in made.tool_losses] == expected, kind


def test_the_ledger_says_what_later_turns_lack_where_a_client_keeps_nothing_opaque(hall: Hall) -> None:
    fields = {"tools": [{"type": "web_search"}], "store": False}
    made = hall.conversations[5_700] = Conversation(5_700, "chat", "resent", stream=False)
    made.replies = [ScriptedReply((write_search("search"),), Stop.TOOL), *[ScriptedReply((Text("Done."),))] * 2]
    question = {"role": "user", "content": "conversation-5700 "}
    response = hall.post(made, "/v1/responses", {"input": [question], **fields}).json
    assert made.tool_losses == [], "that a reply has searched is no loss"
    hall.post(made, "/v1/responses", {"input": [question, *response["output"], question], **fields})
    assert made.tool_losses == [("/input/1", "approximated")]


def test_a_vendor_with_the_tool_gets_text_and_nothing_that_only_the_gateway_reads(hall: Hall) -> None:
    made = hall.conversations[5_800] = Conversation(5_800, "chat", "previous", stream=False)
    page = write_fetch("http://docs.test/5800")
    calls = [ScriptedReply((call,), Stop.TOOL) for call in (write_search("search"), page)]
    made.replies = [*calls, ScriptedReply((Text("Done."),)), ScriptedReply((Text("Fine."),))]
    fields: JsonObject = {"input": "conversation-5800 http://docs.test/5800", "tools": RESPONSES_TOOLS}
    first = hall.post(made, "/v1/responses", fields).json
    assert "encrypted_content" not in str(first)
    made.upstream = "responses"
    hall.post(made, "/v1/responses", {"input": "And?", "previous_response_id": first["id"]})
    assert b"dgm1." not in made.read[-1]
    assert b"Web search for 'search pandas'" in made.read[-1]
    assert b"All of /5800." in made.read[-1]


def test_google_gets_text_instead_of_what_only_the_gateway_reads(hall: Hall) -> None:
    made = hall.conversations[5_850] = Conversation(5_850, "chat", "gemini", stream=False)
    made.replies = [ScriptedReply((write_search(kind),), Stop.TOOL) for kind in ("search", "broken")]
    made.replies += [ScriptedReply((Text(text),)) for text in ("Done.", "Fine.")]
    question = {"role": "user", "parts": [{"text": "conversation-5850 "}]}
    first = hall.ask_gemini(made, {"contents": [question], "tools": [{"googleSearch": {}}]})
    made.upstream = "gemini"
    hall.ask_gemini(made, {"contents": [question, first.json["candidates"][0]["content"], question]})
    texts = [part["text"] for part in json.loads(made.read[-1])["contents"][1]["parts"]]
    assert [text.partition(" ")[0] for text in texts] == ["Web", "Error", "Done."]
    assert b"thoughtSignature" not in made.read[-1]


def test_an_item_that_comes_back_without_what_is_kept_of_it_is_completed(hall: Hall) -> None:
    made = hall.conversations[5_900] = Conversation(5_900, "chat", "previous", stream=False)
    made.replies = [ScriptedReply((write_search("words"),), Stop.TOOL), *[ScriptedReply((Text("Done."),))] * 2]
    question = {"role": "user", "content": "conversation-5900 "}
    first = hall.post(made, "/v1/responses", {"input": [question], "tools": RESPONSES_TOOLS}).json
    history = [question, *first["output"], {"role": "user", "content": "And?"}]
    hall.post(made, "/v1/responses", {"input": history, "tools": RESPONSES_TOOLS, "store": False})
    check([made])


@pytest.mark.rest
def test_a_thousand_conversations_read_what_they_have_read_before(hall: Hall) -> None:
    conversations = [make_conversation(number) for number in range(1000, 2000)]
    hold_all(hall, conversations)
    check(conversations)

"""`dragoman cache why`: from the running gateway, from the store, from rows alone; exit codes; no secret is printed."""

import pytest

from asking import send
from fakes.upstream import FakeUpstream
from scripting import write_reply
from scripting.replies import ScriptedReply, Text, Tokens
from shell import Done, Served, Shell
from waiting import wait_until
from wire_json import Json, JsonObject

SECRET = "sk-ant-FAKE-0123456789abcdef0123456789abcdef"  # plainly fake
RULES = "Answer in one word. " * 400


def configure(shell: Shell, fake: FakeUpstream, capture: str = "all") -> None:
    shell.write(
        "up.toml",
        f'[debug]\ncapture = "{capture}"\n[providers.up]\nkind = "anthropic"\n'
        f'endpoint = "{fake.url}"\napi_key = "{SECRET}"\n',
    )


class Conversation:
    """A gateway that runs as a process, and one session with it."""

    def __init__(self, served: Served, fake: FakeUpstream, session: str = "the-session") -> None:
        self._served, self._fake, self._session = served, fake, session
        self.messages: list[Json] = []

    def ask(self, text: str, tokens: Tokens, system: str = RULES, **more: Json) -> str:
        """Send the next turn of a Chat client and return its request id."""
        self.messages.append({"role": "user", "content": text})
        reply = ScriptedReply((Text("Yes."),), tokens=tokens)
        self._fake.answers = [write_reply("messages", reply, stream=False)]
        messages = [{"role": "system", "content": system}, *self.messages]
        body: JsonObject = {"model": "up/claude-sonnet-5", "max_tokens": 9, "messages": messages, **more}
        headers = {"session-id": self._session}
        found = send(self._served, "POST", "/v1/chat/completions", body, key=self._served.key, headers=headers)
        assert found.status == 200, found.body
        self.messages.append({"role": "assistant", "content": "Yes."})
        return found.headers["x-request-id"]


def why(shell: Shell, *words: str) -> Done:
    return shell.run("cache", "why", *words, "--config", "up.toml")


def wait_for(shell: Shell, id: str, source: str = "captures") -> None:
    """Wait until what the command answers from has been written."""
    wait_until(lambda: why(shell, id, "--json").out.find(f'"source": "{source}"') > 0)


@pytest.mark.rest
def test_captures_name_byte_pointers_and_cause_and_no_secret(shell: Shell) -> None:
    with FakeUpstream() as fake:
        configure(shell, fake)
        with shell.serve("--config", "up.toml") as served:
            talk = Conversation(served, fake)
            first = talk.ask("Hello", Tokens(2_100, 5, written=2_050))
            second = talk.ask("More", Tokens(2_110, 5, cached=2_090))
            dated = [f"It is 2026-11-{day}. The token is {SECRET}. {RULES}" for day in (17, 18)]
            third = talk.ask("And?", Tokens(2_150, 5), system=dated[0])
            fourth = talk.ask("So?", Tokens(2_150, 5), system=dated[1])
            wait_for(shell, fourth)
            assert why(shell, first, "--json").json["cause"] == "first"
            hit = why(shell, second)
            assert (hit.code, "hit" in hit.out, hit.err) == (0, True, "")
            assert why(shell, third).code == 1
            found = why(shell, fourth, "--json")
            assert found.code == 1
            answer = found.json
            names = ("verdict", "cause", "against", "upstream_path", "client_path", "read_tokens", "input_tokens")
            assert [answer[name] for name in names] == [
                *("miss", "date_or_time", third, "/system/0/text", "/messages/0/content"),
                *(0, 2_150),
            ]
            assert answer["earlier"].startswith("It is 2026-11-17")
            assert answer["later"].startswith("It is 2026-11-18")
            assert answer["first_byte"] > 0
            assert answer["tokens_before"] + answer["tokens_after"] == 2_150
            table = why(shell, fourth, "--against", third)
            assert table.code == 1
            for shown in ("date_or_time", "/system/0/text", "/messages/0/content", "2026-11-18", "to do"):
                assert shown in table.out
            printed = found.out + table.out
            assert SECRET not in printed
            assert "0123456789abcdef" not in printed
            assert why(shell, "last", "--json").json["request_id"] == fourth
            assert why(shell, fourth[-8:], "--json").json["request_id"] == fourth
            through_http = send(served, "GET", f"/api/v1/requests/{fourth}/cache?against={third}", key=served.key)
            assert through_http.json == answer
        stopped = why(shell, fourth, "--json")
        assert (stopped.code, stopped.json) == (1, answer)


def test_rows_alone_answer_with_cause_and_block(shell: Shell) -> None:
    with FakeUpstream() as fake:
        configure(shell, fake, capture="off")
        with shell.serve("--config", "up.toml") as served:
            talk = Conversation(served, fake)
            talk.ask("Hello", Tokens(2_100, 5))
            changed = talk.ask("More", Tokens(2_200, 5), system=f"Now. {RULES}")
            wait_for(shell, changed, "row")
            found = why(shell, changed, "--json")
            names = ("verdict", "source", "cause", "upstream_path", "earlier", "client_path")
            assert [found.json[name] for name in names] == ["miss", "row", "system", "/system/0", None, None]
            assert found.code == 1
            assert "two captures" in why(shell, changed).out
            hit = talk.ask("More", Tokens(2_300, 5, cached=2_290), system=f"Now. {RULES}")
            assert why(shell, hit).code == 0
        assert why(shell, changed, "--json").json == found.json


@pytest.mark.parametrize("words", [("req_000000000000000000000000",), ("last",), ("nothing", "--against", "last")])
@pytest.mark.rest
def test_an_unknown_request_is_not_explained(shell: Shell, words: tuple[str, ...]) -> None:
    with FakeUpstream() as fake:
        configure(shell, fake)
        found = why(shell, *words)
        assert (found.code, found.out) == (3, "")
        assert "There is no request" in found.err
        with shell.serve("--config", "up.toml"):
            assert why(shell, *words).code == 3


def test_an_unexplained_miss_says_so(shell: Shell) -> None:
    with FakeUpstream() as fake:
        configure(shell, fake)
        with shell.serve("--config", "up.toml") as served:
            talk = Conversation(served, fake)
            talk.ask("Hello", Tokens(2_100, 5))
            lost = talk.ask("More", Tokens(2_110, 5))
            wait_for(shell, lost)
            found = why(shell, lost)
            assert (found.code, "unknown" in found.out) == (3, True)


def test_wrong_usage_is_refused(shell: Shell) -> None:
    assert shell.run("cache", "why").code == 2
    assert shell.run("cache", "why", "a", "--other").code == 2
    assert shell.run("cache").code == 2

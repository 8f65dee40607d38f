"""A session moves to an account that cannot read its reasoning: it is refused once, and left out from then on."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from asking import EXPLAIN, Reply, ask
from dragoman.config.secret import Secret
from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture.files import CaptureBounds, CaptureDirectory, load_capture
from dragoman.server.handler import replay_site
from dragoman.tenancy.keys import ENVIRONMENT_KEY, Keyring
from e2e.pool_rig import key_of, keys_of, make_section
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, running, running_workers
from rig import QUICK
from scripting import write_error, write_reply
from scripting.replies import ScriptedReply, Stop, Text, Thinking
from waiting import wait_until
from wire_json import Json, JsonObject

ONE, TWO = keys_of(2)
PAIRS = [("messages", "messages"), ("responses", "responses"), ("messages", "responses"), ("responses", "messages")]
MODELS = {"messages": "up/claude-sonnet-4-5", "responses": "up/gpt-5"}
UNSIGNED = "messages.1.content.0: Invalid `signature` in `thinking` block"
REFUSALS = {
    "messages": write_error(400, UNSIGNED),
    "responses": write_error(400, "The encrypted content could not be verified.", "invalid_encrypted_content"),
}
FIELDS: dict[str, JsonObject] = {
    "messages": {"max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}},
    "responses": {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"], "store": False},
}
SESSION = {"x-session-id": "one session", **EXPLAIN}

pairs = pytest.mark.parametrize(("client", "upstream"), PAIRS)


@dataclass
class Accounts:
    """An upstream whose accounts read only the reasoning that they have sealed themselves."""

    protocol: str
    limited: set[str] = field(default_factory=set)
    seals: dict[str, str] = field(default_factory=dict)  # seal -> the account
    answered: list[tuple[str, list[str]]] = field(default_factory=list)  # account, the seals in its request
    refused: int = 0
    is_broken: bool = False  # it refuses whatever it can read

    def __call__(self, request: ReceivedRequest) -> Answer:
        account = key_of(request)
        if account in self.limited:
            return write_error(429, "Slow down.", retry_after="900")
        sent = [seal for seal in self.seals if seal.encode() in request.body]
        if any(self.seals[seal] != account for seal in sent):
            self.refused += 1
            return REFUSALS[self.protocol]
        if self.is_broken:
            return write_error(400, "This does not work.")
        self.answered.append((account, sent))
        seal = b64encode(f"seal {len(self.seals)}".encode()).decode()
        self.seals[seal] = account
        reply = ScriptedReply((Thinking("Hm.", seal), Text("Yes.")), Stop.NATURAL)
        return write_reply(self.protocol, reply, stream=bool(request.json.get("stream")))


@dataclass
class Conversation:
    gateway: Running
    accounts: Accounts
    client: str
    key: str = KEY
    history: list[Json] = field(default_factory=list)

    def ask(self, headers: Mapping[str, str] = SESSION) -> Reply:
        """Send the next turn, and append its reply to the history."""
        name = "messages" if self.client == "messages" else "input"
        self.history.append({"role": "user", "content": "Go on."})
        more: JsonObject = {**FIELDS[self.client], name: self.history}
        model = MODELS[self.accounts.protocol]
        answer = ask(self.gateway, self.client, model, headers=headers, key=self.key, **more)
        if answer.status == 200 and self.client == "messages":
            self.history.append({"role": "assistant", "content": answer.json["content"]})
        elif answer.status == 200:
            self.history += answer.json["output"]
        return answer

    def ask_ok(self) -> Reply:
        answer = self.ask()
        assert answer.status == 200, answer.body
        return answer

    def move(self) -> None:
        """Let the account that has answered last answer no more."""
        self.accounts.limited = {self.accounts.answered[-1][0]}

    def fork(self, key: str) -> "Conversation":
        return Conversation(self.gateway, self.accounts, self.client, key, list(self.history))


@contextmanager
def converse(
    directory: Path,
    client: str,
    upstream: str,
    *,
    stored: tuple[str, ...] = (),
    keys: Sequence[str] = (ONE, TWO),
    more: str = "",
) -> Iterator[Conversation]:
    accounts = Accounts(upstream)
    with FakeUpstream(choose=accounts) as fake:
        toml = QUICK + make_section(upstream, fake.url, list(keys)) + more
        with running(toml, directory, stored=stored) as gateway:
            gateway.settle()
            yield Conversation(gateway, accounts, client, gateway.keys[stored[0]] if stored else KEY)


@pairs
def test_after_a_move_one_turn_is_sent_twice_and_later_ones_with_newer_reasoning_once(
    tmp_path: Path, client: str, upstream: str
) -> None:
    with converse(tmp_path, client, upstream) as talk:
        accounts = talk.accounts
        talk.ask_ok()
        talk.ask_ok()
        old = list(accounts.seals)
        assert accounts.answered[1] == (accounts.answered[0][0], old[:1]), "the first account reads its own"
        talk.move()
        moved = talk.ask_ok()
        assert accounts.refused == 1
        later = [talk.ask_ok() for _ in range(3)]
        assert accounts.refused == 1, "later turns were sent twice"
        account, _ = accounts.answered[2]
        new = list(accounts.seals)[2:]
        assert accounts.answered[2:] == [(account, new[:count]) for count in range(4)]
        losses = [sum(how == "dropped" for _, how in answer.losses) for answer in (moved, *later)]
        assert losses == [losses[0]] * 4


@pairs
def test_two_moves_leave_out_the_reasoning_of_both_accounts(tmp_path: Path, client: str, upstream: str) -> None:
    with converse(tmp_path, client, upstream) as talk:
        accounts = talk.accounts
        talk.ask_ok()
        talk.move()
        talk.ask_ok()
        pool = talk.gateway.app.gateway.runtime.providers["up"].account.pool
        assert pool is not None
        pool.clock = lambda: 4e9  # the cooldown of the first is over
        accounts.limited = {accounts.answered[-1][0]}
        talk.ask_ok()
        assert accounts.refused == 1 + 1
        talk.ask_ok()
        assert accounts.refused == 2
        assert [len(sent) for _, sent in accounts.answered] == [0, 0, 0, 1]


def test_bytes_pass_unchanged_again_once_the_history_has_nothing_rejected(tmp_path: Path) -> None:
    with converse(tmp_path, "messages", "messages") as talk:
        talk.ask_ok()
        talk.move()
        assert talk.ask_ok().headers["x-dragoman-loss"] == "1"
        talk.history.clear()  # compacted by the client
        assert "x-dragoman-loss" not in talk.ask_ok().headers


def test_with_one_account_built_requests_leave_it_out_and_bytes_still_pass_unchanged(tmp_path: Path) -> None:
    with converse(tmp_path, "responses", "messages", keys=[ONE]) as talk:
        accounts = talk.accounts
        talk.ask_ok()
        [seal] = accounts.seals
        accounts.seals[seal] = "an account of last week"
        talk.ask_ok()
        talk.ask_ok()
        assert accounts.refused == 1
        thought = {"type": "thinking", "thinking": "Hm.", "signature": seal}
        native = Conversation(talk.gateway, accounts, "messages")
        native.history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [thought]}]
        refused = native.ask()
        assert (refused.status, refused.body) == (400, REFUSALS["messages"].body)
        assert accounts.refused == 2


def test_two_client_keys_never_share_what_was_rejected(tmp_path: Path) -> None:
    with converse(tmp_path, "messages", "messages", stored=("ann", "bob")) as talk:
        talk.ask_ok()
        talk.move()
        other = talk.fork(talk.gateway.keys["bob"])
        talk.ask_ok()
        talk.ask_ok()
        assert talk.accounts.refused == 1
        other.ask_ok()
        assert talk.accounts.refused == 2, "the same history under the same session name, but of another key"


def test_two_sessions_of_one_key_learn_each_for_itself(tmp_path: Path) -> None:
    with converse(tmp_path, "messages", "messages") as talk:
        talk.ask_ok()
        talk.move()
        talk.ask_ok()
        other = talk.ask({"x-session-id": "another session"})
        assert (other.status, talk.accounts.refused) == (200, 2)


def test_nothing_is_remembered_of_a_request_that_is_refused_again(tmp_path: Path) -> None:
    with converse(tmp_path, "messages", "messages") as talk:
        talk.ask_ok()
        talk.move()
        talk.accounts.is_broken = True
        refused = talk.ask()
        assert (refused.status, refused.json["error"]["message"]) == (400, UNSIGNED), "the first error"
        assert talk.accounts.refused == 1
        talk.accounts.is_broken = False
        talk.ask_ok()
        assert talk.accounts.refused == 2, "the full form was not tried again"


def test_a_strict_request_is_sent_in_its_full_form(tmp_path: Path) -> None:
    with converse(tmp_path, "messages", "messages") as talk:
        talk.ask_ok()
        talk.move()
        talk.ask_ok()
        assert talk.ask({**SESSION, "x-dragoman-strict": "1"}).status == 400
        assert talk.accounts.refused == 2


def test_what_was_left_out_is_left_out_again_in_a_replay(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    more = f'[debug]\ncapture = "all"\ndirectory = "{captures}"\n'
    with converse(tmp_path, "responses", "messages", more=more) as talk:
        talk.ask_ok()
        talk.move()
        talk.ask_ok()
        talk.ask_ok()
        directory = CaptureDirectory(captures, CaptureBounds(100, 1 << 30, 86_400.0))
        wait_until(lambda: len(directory.files()) == 3)
        for file in directory.files():
            capture = load_capture(file)
            changes = [
                change for part in compare_captures(capture, rerun(capture, replay_site)) for change in part.changes
            ]
            assert changes == []


GEMINI: list[Json] = [
    {"role": "user", "parts": [{"text": "Hi"}]},
    {
        "role": "model",
        "parts": [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "b2xk"}, {"text": "A"}],
    },
    {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {}}}]},
]
MESSAGES: list[Json] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "b2xk"}, {"type": "text", "text": "A"}],
    },
    {"role": "user", "content": "Go on."},
]
RESPONSES: list[Json] = [
    {"role": "user", "content": "Hi"},
    {"type": "reasoning", "summary": [], "encrypted_content": "b2xk"},
    {"role": "user", "content": "Go on."},
]
FOREIGN: list[tuple[str, Answer, JsonObject, str, tuple[bytes, bytes]]] = [
    (
        "messages",
        REFUSALS["messages"],
        {"messages": MESSAGES},
        "/messages/1/content/0",
        (b'{"type":"thinking","thinking":"Hm.","signature":"b2xk"},', b""),
    ),
    (
        "messages",
        Answer(b'[{"error":{"message":"%s"}}]' % UNSIGNED.encode(), 400, "application/json"),
        {"messages": MESSAGES},
        "/messages/1/content/0",
        (b'{"type":"thinking","thinking":"Hm.","signature":"b2xk"},', b""),
    ),
    (
        "responses",
        REFUSALS["responses"],
        {"input": RESPONSES, "store": False},
        "/input/1",
        (b'{"type":"reasoning","summary":[],"encrypted_content":"b2xk"},', b""),
    ),
    (
        "gemini",
        write_error(400, "Corrupted thought signature."),
        {"contents": GEMINI},
        "/contents/1/parts/0/thoughtSignature",
        (b"b2xk", b"skip_thought_signature_validator"),
    ),
]


@pytest.mark.parametrize(("protocol", "refusal", "fields", "path", "spans"), FOREIGN, ids=[row[0] for row in FOREIGN])
def test_bytes_that_pass_to_an_imitation_go_without_what_it_cannot_read(
    tmp_path: Path, protocol: str, refusal: Answer, fields: JsonObject, path: str, spans: tuple[bytes, bytes]
) -> None:
    """Two requests the first time, then one, which differs in nothing else; another session learns for itself."""

    def choose(request: ReceivedRequest) -> Answer:
        return refusal if b"b2xk" in request.body else write_reply(protocol, "Yes.", stream=False)

    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "{}"\nendpoint = "{}"\napi_key = "sk-f"\n'
    with FakeUpstream(choose=choose) as fake, running(section.format(protocol, fake.url), tmp_path) as gateway:
        for count in (2, 3):
            answer = ask(gateway, protocol, "up/m", headers=SESSION, **fields)
            assert (answer.status, len(fake.calls)) == (200, count), answer.body
            assert answer.headers["x-dragoman-loss"] == "1"
            assert answer.losses == [(path, "dropped")]
        full = fake.calls[0].body
        assert [call.body for call in fake.calls[1:]] == [full.replace(*spans)] * 2
        strict = ask(gateway, protocol, "up/m", headers={**SESSION, "x-dragoman-strict": "1"}, **fields)
        assert (strict.status, fake.calls[3].body) == (400, full)
        assert ask(gateway, protocol, "up/m", headers={"x-session-id": "another"}, **fields).status == 200
        assert len(fake.calls) == 6


def test_bytes_that_pass_to_another_account_differ_only_in_its_reasoning(tmp_path: Path) -> None:
    with converse(tmp_path, "messages", "messages") as talk:
        talk.ask_ok()
        [seal] = talk.accounts.seals
        talk.move()
        moved = talk.ask_ok()
        assert moved.losses == [("/messages/1/content/0", "dropped")]
        assert moved.headers["x-dragoman-why"].startswith("passed")
        assert seal in str(talk.history)


def test_another_worker_leaves_out_the_same_reasoning(tmp_path: Path) -> None:
    """Else it would be refused once more there, and the newer reasoning would be left out by that worker only."""

    def choose(request: ReceivedRequest) -> Answer:
        return REFUSALS["messages"] if b"b2xk" in request.body else write_reply("messages", "Yes.", stream=False)

    newer = {"type": "thinking", "thinking": "Hm.", "signature": "bmV3"}
    answered = {"role": "assistant", "content": [newer, {"type": "text", "text": "B"}]}
    history: list[Json] = [*MESSAGES, answered, MESSAGES[0]]
    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "messages"\nendpoint = "{}"\napi_key = "sk-f"\n'
    with FakeUpstream(choose=choose) as fake, running_workers(section.format(fake.url), tmp_path) as both:
        assert ask(both[0], "messages", "up/m", headers=SESSION, messages=MESSAGES).status == 200
        tenant = Keyring(None, Secret(KEY)).tenant(ENVIRONMENT_KEY)
        wait_until(lambda: (tenant, "up") in both[1].app.gateway._memories.reasoning.known)
        for worker in (both[1], both[0]):
            assert ask(worker, "messages", "up/m", headers=SESSION, messages=history).status == 200
        assert len(fake.calls) == 4
        assert fake.calls[2].body == fake.calls[3].body
        assert b"bmV3" in fake.calls[3].body

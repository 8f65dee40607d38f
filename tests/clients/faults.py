"""Faults of an upstream in its own protocol; the name of a fault may be part of a model's name."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from clients.rig import Rig, run_rig
from fakes import kiro
from fakes.agent import AgentRequest, ChangeAnswer, Use
from fakes.eventstream import exception
from fakes.upstream import Answer, End

CUT_AFTER = b"will u"  # some way into the text of the agent's first reply, and into that of no other
OPENAI_ERROR = b'{"error":{"message":"The engine overheated.","type":"%b","param":null,"code":null}}'
MESSAGES_ERROR = b'{"type":"error","error":{"type":"%b","message":"The engine overheated."},"request_id":"req_fake"}'
FAILED = (
    b'event: response.failed\ndata: {"type":"response.failed","sequence_number":99,"response":{"id":"resp_fake1",'
    b'"object":"response","created_at":1794700001,"status":"failed","error":{"code":"server_error",'
    b'"message":"The engine overheated."},"incomplete_details":null,"instructions":null,"metadata":{},'
    b'"model":"some-model","output":[],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"auto","tools":[],'
    b'"top_p":1.0,"usage":null}}\n\n'
)
ERROR_EVENTS = {
    "chat": b"data: " + OPENAI_ERROR % b"server_error" + b"\n\n",
    "responses": FAILED,
    "messages": b"event: error\ndata: " + MESSAGES_ERROR % b"api_error" + b"\n\n",
    "kiro": exception("InternalServerException", {"message": "The engine overheated."}),
}
# The same where the vendor is overloaded, which Codex treats as final if the error names it.
OVERLOADS = {
    "chat": b"data: "
    + OPENAI_ERROR.replace(b'"code":null', b'"code":"server_is_overloaded"') % b"server_error"
    + b"\n\n",
    "responses": FAILED.replace(b'"code":"server_error"', b'"code":"server_is_overloaded"'),
    "messages": b"event: error\ndata: " + MESSAGES_ERROR % b"overloaded_error" + b"\n\n",
    "kiro": exception("ServiceUnavailableException", {"message": "The engine overheated."}),
}
NO_ERRORS: Mapping[str, bytes] = {}
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"


def refusal(status: int, kinds: tuple[bytes, bytes], *headers: tuple[str, str]) -> Callable[[str, Answer], Answer]:
    def refuse(upstream: str, _: Answer) -> Answer:
        if upstream == "kiro":
            return replace(kiro.refusal(status, "The engine overheated.", kind="ThrottlingException"), headers=headers)
        body = MESSAGES_ERROR % kinds[1] if upstream == "messages" else OPENAI_ERROR % kinds[0]
        return Answer(body, status, "application/json", headers, chunked=False)

    return refuse


def _cut(end: End, errors: Mapping[str, bytes] = NO_ERRORS) -> Callable[[str, Answer], Answer]:
    def cut(upstream: str, answer: Answer) -> Answer:
        at = _end_of_event(upstream, answer.body, answer.body.index(CUT_AFTER))
        return replace(answer, body=answer.body[:at] + errors.get(upstream, b""), end=end)

    return cut


def _end_of_event(upstream: str, body: bytes, inside: int) -> int:
    """Where the event ends that this byte is in."""
    if upstream != "kiro":
        return body.index(b"\n\n", inside) + 2
    at = 0
    while at <= inside:
        at += int.from_bytes(body[at : at + 4], "big")
    return at


# Before the first byte: nothing is lost, and a retry succeeds.
REFUSALS: dict[str, Callable[[str, Answer], Answer]] = {
    "429": refusal(429, (b"rate_limit_error", b"rate_limit_error"), ("retry-after", "1")),
    "529": refusal(529, (b"server_error", b"overloaded_error")),
    "html-502": lambda _, answer: Answer(HTML, 502, "text/html"),
}
# In the middle of the text: a reply that ends here is not whole.
CUTS: dict[str, Callable[[str, Answer], Answer]] = {
    "error-event": _cut(End.CLEAN, ERROR_EVENTS),
    "overload": _cut(End.CLEAN, OVERLOADS),
    "tcp-drop": _cut(End.CUT),
    "reset": _cut(End.RESET),
    "clean-end": _cut(End.CLEAN),
    "stall": _cut(End.HANG),
}
FAULTS = {**REFUSALS, **CUTS}


def cuts(upstream: str) -> list[str]:
    """The cuts that a client hears of as errors; a Kiro that ends between two frames has reached its length."""
    return [fault for fault in CUTS if (upstream, fault) != ("kiro", "clean-end")]


# The client's own recovery is under test, so the gateway does not try again, and a stall is noticed soon.
SETTINGS = "[retry]\nattempts = 1\n[server]\nidle_timeout_s = 0.6\n"
SIDE_BY_SIDE = 6


def fail_once(upstream: str, fault: str) -> ChangeAnswer:
    """Let the first reply fail, and no later one."""
    return lambda answer, request, before: answer if before else FAULTS[fault](upstream, answer)


def fail_always(upstream: str, fault: str) -> ChangeAnswer:
    """Let every reply to the first request of a conversation fail."""

    def change(answer: Answer, request: AgentRequest, _: int) -> Answer:
        return FAULTS[fault](upstream, answer) if CUT_AFTER in answer.body or fault in REFUSALS else answer

    return change


def by_model(upstream: str) -> ChangeAnswer:
    """Let the first reply of each model fail in the way that its name has after the @."""

    def change(answer: Answer, request: AgentRequest, before: int) -> Answer:
        fault = request.model.partition("@")[2]
        return FAULTS[fault](upstream, answer) if fault and not before else answer

    return change


def try_each(
    faults: list[str],
    directory: Path,
    upstream: str,
    use: Use,
    change: Callable[[str, str], ChangeAnswer],
    do: Callable[[Rig], None],
) -> None:
    """Try each fault in a gateway of its own; clients wait more than they work, so several run at a time."""

    def one(fault: str) -> str:
        own = directory / fault
        own.mkdir()
        with run_rig(own, upstream, use, change=change(upstream, fault), settings=SETTINGS) as rig:
            try:
                do(rig)
            except AssertionError as problem:
                return f"{fault}: {problem}"
            return ""

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        problems = [problem for problem in pool.map(one, faults) if problem]
    assert not problems, "\n\n".join(problems)

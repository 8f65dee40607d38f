"""What an exception says is never an empty text."""

import asyncio
import errno

from dragoman.translate.hub.failure import describe_cause
from tables import each_row


@each_row(
    ("error", "without_text", "cause"),
    [
        (TimeoutError(), "", "no answer in time"),
        (TimeoutError(), "no answer within 5 s", "no answer within 5 s"),
        (TimeoutError("the server is slow"), "no answer within 5 s", "the server is slow"),
        (asyncio.CancelledError(), "", "CancelledError"),
        (ConnectionResetError(), "", "ConnectionResetError"),
        (ConnectionResetError("closed in the handshake"), "", "closed in the handshake"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.json"), "", "No such file or directory"),
        (ValueError(" "), "", "ValueError"),
        (ValueError("too long"), "unknown", "too long"),
    ],
)
def test_a_cause_is_never_empty(error: BaseException, without_text: str, cause: str) -> None:
    assert describe_cause(error, without_text) == cause

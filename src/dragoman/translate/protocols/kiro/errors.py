"""Read Kiro's error responses and exceptions into failures, and describe the requests that it rejects.

The reason decides, then the message, then the exception's class, then the status:
the same reason has come under several statuses, and one status means many things.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct, field

from dragoman.translate.framing.error_text import READ, clean_message, describe_error_page, kind_for_status, retry_after
from dragoman.translate.framing.jsonread import JSON_ERRORS, decode_or
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.protocols.kiro.wire import Fault

_RATE_LIMIT_WAIT_S = 8.0  # a request before that prolongs the limit
_SUSPICION_WAIT_S = 300.0

_BY_REASON = {
    "CONTENT_LENGTH_EXCEEDS_THRESHOLD": Kind.CONTEXT_TOO_LONG,
    "INVALID_MODEL_ID": Kind.NOT_FOUND,
    "INVALID_CONVERSATION_ID": Kind.BAD_REQUEST,
    "INVALID_KMS_GRANT": Kind.BAD_REQUEST,
    "REQUEST_BODY_INVALID": Kind.BAD_REQUEST,
    "THINKING_SIGNATURE_INVALID": Kind.BAD_REQUEST,
    "TEMPORARILY_SUSPENDED": Kind.FORBIDDEN,
    "FEATURE_NOT_SUPPORTED": Kind.FORBIDDEN,
    "MISMATCHED_KMS_KEY": Kind.CONFLICT,
    "MONTHLY_REQUEST_COUNT": Kind.QUOTA,
    "DAILY_REQUEST_COUNT": Kind.QUOTA,
    "OVERAGE_REQUEST_LIMIT_EXCEEDED": Kind.QUOTA,
    "CONVERSATION_LIMIT_EXCEEDED": Kind.QUOTA,
    "INSUFFICIENT_MODEL_CAPACITY": Kind.OVERLOADED,
    "INSUFFICIENT_THROUGHPUT": Kind.OVERLOADED,
    "SERVICE_REQUEST_RATE_EXCEEDED": Kind.OVERLOADED,
    "MODEL_TEMPORARILY_UNAVAILABLE": Kind.OVERLOADED,
    "USER_REQUEST_RATE_EXCEEDED": Kind.RATE_LIMITED,
    "CREDIT_CONSUMPTION_RATE_EXCEEDED": Kind.RATE_LIMITED,
}
_BY_REASON_PREFIX = {"UNAUTHORIZED_": Kind.FORBIDDEN, "CUSTOMER_KMS_KEY_": Kind.CONFLICT}
_LIMITED = frozenset({"USER_REQUEST_RATE_EXCEEDED", "CREDIT_CONSUMPTION_RATE_EXCEEDED"})

_FINAL = re.compile(r"\bsuspended\b|\b(?:not |un)supported\b", re.IGNORECASE)
_SUSPICIOUS = re.compile(r"suspicious activity", re.IGNORECASE)
_BY_MESSAGE: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (_SUSPICIOUS, Kind.RATE_LIMITED),
    (re.compile(r"\bsuspended\b", re.IGNORECASE), Kind.FORBIDDEN),
    (re.compile(r"\btoken\b.{0,200}\b(?:invalid|expired|revoked|malformed)\b", re.IGNORECASE), Kind.CREDENTIAL),
    (re.compile(r"input is too long|context (?:length|window)", re.IGNORECASE), Kind.CONTEXT_TOO_LONG),
    (re.compile(r"reached the (?:\w+ )?limit", re.IGNORECASE), Kind.QUOTA),
    (re.compile(r"high (?:traffic|load)", re.IGNORECASE), Kind.OVERLOADED),
    (re.compile(r"too many requests", re.IGNORECASE), Kind.RATE_LIMITED),
)

# The exceptions of the service's model, and those that AWS's front ends add.
_BY_CLASS = {
    "ThrottlingException": Kind.RATE_LIMITED,
    "TooManyRequestsException": Kind.RATE_LIMITED,
    "ServiceQuotaExceededException": Kind.QUOTA,
    "ValidationException": Kind.BAD_REQUEST,
    "SerializationException": Kind.BAD_REQUEST,
    "AccessDeniedException": Kind.FORBIDDEN,
    "UnauthorizedException": Kind.CREDENTIAL,
    "ExpiredTokenException": Kind.CREDENTIAL,
    "UnrecognizedClientException": Kind.CREDENTIAL,
    "ResourceNotFoundException": Kind.NOT_FOUND,
    "ConflictException": Kind.CONFLICT,
    "ServiceUnavailableException": Kind.OVERLOADED,
    "InternalServerException": Kind.UPSTREAM,
    "InternalFailureException": Kind.UPSTREAM,
    "RequestTimeoutException": Kind.TIMEOUT,
    "DryRunOperationException": Kind.BAD_REQUEST,
}

# An HTTP error names the class, `ThrottlingException`. An event stream names the member of its union that holds the
# exception, `throttlingException`, or `error` for InternalServerException; so letter case is ignored.
_SPELLING = {name.lower(): name for name in _BY_CLASS} | {"error": "InternalServerException"}

_fault = msgspec.json.Decoder(Fault)


class _SentContext(Struct, rename="camel"):
    tool_results: list[Raw] = []
    tools: list[Raw] = []


class _SentMessage(Struct, rename="camel"):
    content: str = ""
    images: list[Raw] = []
    tool_uses: list[Raw] = []
    user_input_message_context: _SentContext = field(default_factory=_SentContext)


class _SentEntry(Struct, rename="camel"):
    user_input_message: _SentMessage = field(default_factory=_SentMessage)
    assistant_response_message: _SentMessage = field(default_factory=_SentMessage)


class _SentState(Struct, rename="camel"):
    current_message: _SentEntry
    history: list[_SentEntry] = []


class _SentRequest(Struct, rename="camel"):
    conversation_state: _SentState


_sent = msgspec.json.Decoder(_SentRequest)


def read_failure(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Return the failure that an error response reports; header names are in lower case."""
    fault = read_fault(body)
    text = clean_message(fault.text) or describe_error_page(status, body)
    named = headers.get(b"x-amzn-errortype", b"").decode("latin-1") or fault.type or str(fault.code or "")
    failure = build_failure(ReportedFault(text, fault.reason, named), status, retry_after(headers))
    if status == 403 and not fault.reason and not fault.text:  # an expired token may be rejected without a reason
        return msgspec.structs.replace(failure, kind=Kind.CREDENTIAL)
    return failure


def may_be_old_token(failure: Failure) -> bool:
    """Return whether a new token may help: after a rejected one, and after a 403 that does not say why it is final."""
    if failure.kind is not Kind.FORBIDDEN or failure.status != 403:
        return failure.kind is Kind.CREDENTIAL
    reason = failure.code or ""
    is_known = reason in _BY_REASON or reason.startswith(tuple(_BY_REASON_PREFIX))
    return not is_known and _FINAL.search(failure.message) is None


def read_fault(body: bytes) -> Fault:
    """Return the error in a JSON body; an empty one if there is none."""
    fault = decode_or(_fault, body, Fault())
    if isinstance(fault.error, str):
        return Fault(message=fault.text or fault.error, reason=fault.reason, type=fault.type, code=fault.code)
    return fault.error or fault.wrapped or fault


class ReportedFault(Struct, frozen=True):
    """What the upstream says went wrong: in an error response, or in a stream."""

    message: str
    reason: str | None
    named: str = ""  # an exception's class, as the upstream spells it


def build_failure(fault: ReportedFault, status: int | None = None, retry_after: float | None = None) -> Failure:
    """Return the failure for a fault and the status of the response."""
    message, reason = fault.message[:READ], fault.reason
    name = fault.named.partition(":")[0].rpartition("#")[2].strip()
    name = _SPELLING.get(name.lower(), name)
    reason = reason.upper() if reason else reason
    kind = _choose_kind(message, reason, name, status)
    minimum = _min_wait(message, reason)
    if minimum is not None:
        retry_after = max(minimum, retry_after or 0.0)
    text = clean_message(message) or f"the upstream reported {reason or name or 'an error'} without a message"
    return Failure(kind, text, status=status, code=reason or name or None, retry_after=retry_after)


def _choose_kind(message: str, reason: str | None, name: str, status: int | None) -> Kind:
    if reason:
        for prefix, kind in _BY_REASON_PREFIX.items():
            if reason.startswith(prefix):
                return kind
        if reason in _BY_REASON:
            return _BY_REASON[reason]
    for pattern, kind in _BY_MESSAGE:
        if pattern.search(message):
            return kind
    if name in _BY_CLASS:
        return _BY_CLASS[name]
    if status is None:
        return Kind.UPSTREAM
    return kind_for_status(status)


def _min_wait(message: str, reason: str | None) -> float | None:
    if reason in _LIMITED:
        return _RATE_LIMIT_WAIT_S
    return _SUSPICION_WAIT_S if not reason and _SUSPICIOUS.search(message) else None


def describe_request(body: bytes) -> str:
    """Return the figures of a request that Kiro rejected: its messages rarely say what is wrong."""
    try:
        state = _sent.decode(body).conversation_state
    except JSON_ERRORS:
        return f"{len(body)} bytes"
    entries = [*state.history, state.current_message]
    messages = [side for entry in entries for side in (entry.user_input_message, entry.assistant_response_message)]
    last = state.current_message.user_input_message
    results = sum(len(message.user_input_message_context.tool_results) for message in messages)
    return (
        f"{len(body)} bytes, {len(state.history)} earlier messages, {len(last.content)} characters in the last one, "
        f"{len(last.user_input_message_context.tools)} tools, {sum(len(side.tool_uses) for side in messages)} calls, "
        f"{results} tool results, {sum(len(side.images) for side in messages)} images"
    )

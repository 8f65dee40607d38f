"""Kiro's error answers and exception messages come in; the failure that each means goes out.

The reason decides, then what the message says where there is none, then the exception's class, then the status:
the same reason has come under several statuses, and one status means many things.
"""

import re
from collections.abc import Mapping

import msgspec

from dragoman.framing.error_text import clean_message, describe_error_page, kind_for_status, retry_after
from dragoman.hub.failure import Failure, Kind
from dragoman.protocols.kiro.wire import Fault

_PENALTY_S = 8.0  # asking a limited account again sooner prolongs the limit
_SUSPICION_S = 300.0

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

_SUSPICIOUS = re.compile(r"suspicious activity", re.IGNORECASE)
_BY_MESSAGE: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (_SUSPICIOUS, Kind.RATE_LIMITED),
    (re.compile(r"\bsuspended\b", re.IGNORECASE), Kind.FORBIDDEN),
    (re.compile(r"\btoken\b.*\b(?:invalid|expired|revoked|malformed)\b", re.IGNORECASE), Kind.CREDENTIAL),
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
# exception, `throttlingException`, or `error` for InternalServerException; so letter case says nothing.
_SPELLING = {name.lower(): name for name in _BY_CLASS} | {"error": "InternalServerException"}

_fault = msgspec.json.Decoder(Fault)


def read(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """An error answer: status, lower-case headers, body."""
    fault = read_fault(body)
    told = clean_message(fault.told) or describe_error_page(status, body)
    named = headers.get(b"x-amzn-errortype", b"").decode("latin-1") or fault.type or str(fault.code or "")
    failure = failure_of(told, fault.reason, named, status, retry_after(headers))
    if status == 403 and not fault.reason and not fault.told:  # a token that has run out may be refused without a word
        return msgspec.structs.replace(failure, kind=Kind.CREDENTIAL)
    return failure


def read_fault(body: bytes) -> Fault:
    """What an error's JSON says; nothing where it is no such JSON."""
    try:
        fault = _fault.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Fault()
    if isinstance(fault.error, str):
        return Fault(message=fault.told or fault.error, reason=fault.reason, type=fault.type, code=fault.code)
    return fault.error or fault.wrapped or fault


def failure_of(
    message: str,
    reason: str | None,
    named: str = "",
    status: int | None = None,
    retry_after: float | None = None,
) -> Failure:
    """The failure that a reason, an exception's class and a status mean together."""
    name = named.partition(":")[0].rpartition("#")[2].strip()
    name = _SPELLING.get(name.lower(), name)
    reason = reason.upper() if reason else reason
    kind = _kind(message, reason, name, status)
    least = _least_wait(message, reason)
    if least is not None:
        retry_after = max(least, retry_after or 0.0)
    told = clean_message(message) or f"the upstream reported {reason or name or 'an error'} without a message"
    return Failure(kind, told, status=status, code=reason or name or None, retry_after=retry_after)


def _kind(message: str, reason: str | None, name: str, status: int | None) -> Kind:
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


def _least_wait(message: str, reason: str | None) -> float | None:
    if reason in _LIMITED:
        return _PENALTY_S
    return _SUSPICION_S if not reason and _SUSPICIOUS.search(message) else None

"""What a command says when it fails, without secrets."""

from dragoman.config.problems import ConfigError
from dragoman.net.errors import ConnectionLost, UpstreamTimeout, describe_fault
from dragoman.operate import AdminError
from dragoman.store import DriverMissing, StoreError
from dragoman.translate.framing.redaction import redact
from dragoman.translate.hub.failure import describe_cause


def explain_error(error: BaseException) -> str:
    """Return what went wrong and what to do; an unexpected exception is reported as a bug, with its place."""
    match error:
        case AdminError() | ConnectionLost() | UpstreamTimeout() | DriverMissing():
            return redact(str(error))
        case ConfigError():
            return redact(f"The configuration is not valid:\n{_indent(str(error))}")
        case StoreError():
            is_server = "postgresql" in str(error)
            advice = "Is the server in store.url up?" if is_server else "store.url may name another file."
            return redact(f"The store cannot be used: {error}\n{advice} `dragoman doctor` shows more.")
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return redact(f"{place}{describe_cause(error)}")
        case _:
            return f"This is a bug in dragoman: {describe_fault(error)}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())

"""What went wrong comes in; the words for the person at the keyboard go out, never a traceback or a secret."""

import click

from dragoman.framing.redaction import redact


class Trouble(click.ClickException):
    """A command cannot do what it was asked; the message says why and what to do."""


def explain(fault: BaseException) -> str:
    from dragoman.config import ConfigError
    from dragoman.net.errors import ConnectionLost, UpstreamTimeout
    from dragoman.net.tasks import describe_fault
    from dragoman.store import StoreError

    match fault:
        case ConfigError():
            return redact(f"the configuration cannot be used:\n{indented(str(fault))}")
        case StoreError():
            server = "postgresql" in str(fault)
            advice = "is the server of store.url up?" if server else "store.url may name another file."
            advice = f"`dragoman doctor` says more; {advice}"
            return redact(f"the store cannot be used: {fault}\n{advice}")
        case ConnectionLost() | UpstreamTimeout():
            return redact(str(fault))
        case OSError():
            place = f"{fault.filename}: " if fault.filename else ""
            return redact(f"{place}{fault.strerror or fault}")
        case _:
            return f"dragoman has a bug: {describe_fault(fault)}"


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())

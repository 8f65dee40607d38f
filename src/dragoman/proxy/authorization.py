"""Credentials of upstream requests: the provider's own, or the failure that says why it has none."""

from dragoman.config.problems import ConfigError
from dragoman.net.headers import Header
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.provider import Provider, UnsignedRequest


async def authorize(provider: Provider, request: UnsignedRequest) -> tuple[Header, ...]:
    """Return the headers with the provider's credential; raises RequestError if it has none."""
    try:
        return await provider.auth.authorize(request)
    except ConfigError as error:
        raise RequestError(missing_credential(provider, error)) from error


def missing_credential(provider: Provider, error: ConfigError) -> Failure:
    which = f" {provider.account.label}" if provider.account.label else ""
    problems = "; ".join(problem.message for problem in error.problems)
    message = f"Provider {provider.name!r} has no credential{which}: {problems}. Run: dragoman doctor"
    return Failure(Kind.CREDENTIAL, message)

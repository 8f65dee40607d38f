"""Record what a request learns from its surroundings and sends to upstreams.

Each class here holds the real object, passes calls on to it, and notes in the recording what came back.
"""

import math
import typing
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.accounts.pool import Choice, CredentialChooser
from dragoman.flow.capture.format import NO_PROVIDER, LookupName
from dragoman.flow.capture.recording import Recording
from dragoman.flow.capture.recording_provider import record_provider
from dragoman.flow.capture.recording_tools import describe_backends, describe_tools, record_plan
from dragoman.flow.ports import CallState, LostCallMemory, MediaFetcher, ModelCatalogue
from dragoman.flow.runtime import Runtime, list_known_models
from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Protocol, Upstream
from dragoman.hub.profile import Target
from dragoman.hub.request import Inline, Request
from dragoman.passes.truncation_notice import LostCall
from dragoman.providers.provider import ModelInfo, Provider

MAX_NAMES = 2000  # of each provider's models


class RecordedCall(typing.Protocol):
    """Who made a request."""

    @property
    def tenant(self) -> str: ...
    @property
    def is_owner(self) -> bool: ...


def record_runtime(runtime: Runtime, recording: Recording, call: RecordedCall) -> Runtime:
    """Return a runtime that behaves the same and notes in the recording what the call learns from it."""
    recording.owner = call.is_owner
    recording.note_settings(
        runtime.config, runtime.learned_quirks.list_known_to(call.tenant), lambda: _list_names(runtime)
    )
    if runtime.tool_plans:
        backends = {name: describe_backends(plan) for name, plan in runtime.tool_plans.items()}
        recording.note_tools(describe_tools(runtime.config.tools), backends)
    return replace(
        runtime,
        providers={name: _record_pooled(provider, recording) for name, provider in runtime.providers.items()},
        catalogues={
            name: RecordingCatalogue(catalogue, name, recording) for name, catalogue in runtime.catalogues.items()
        },
        protocols={name: _record_protocol(protocol, recording) for name, protocol in runtime.protocols.items()},
        fetcher=None if runtime.fetcher is None else RecordingFetcher(runtime.fetcher, recording),
        tool_plans={name: record_plan(plan, name, recording) for name, plan in runtime.tool_plans.items()},
        targets={},  # found anew, so that what finding them takes is noted
        settings={},  # they refer to what is replaced here
    )


def record_state(state: CallState, recording: Recording) -> None:
    """Note what a call refers to in the server's state."""
    if recording.reserve(state.size, "stored items"):
        recording.note_lookup(NO_PROVIDER, LookupName.STATE, lambda: {"value": state.record()})


def _list_names(runtime: Runtime) -> dict[str, tuple[str, ...]]:
    names = {name: models.ids[:MAX_NAMES] for name, models in list_known_models(runtime).items()}
    return {NO_PROVIDER: tuple(route.name for route in runtime.config.models[:MAX_NAMES]), **names}


def _record_pooled(provider: Provider, recording: Recording) -> Provider:
    """Record a provider, the choice among its credentials, and each of them."""
    chooser, account = None, provider.account
    if account.pool is not None:
        chooser = RecordingChooser(account.chooser or account.pool, provider.name, recording)
    return replace(
        record_provider(provider, recording),
        account=replace(account, chooser=chooser),
        members=tuple(record_provider(member, recording) for member in provider.members),
    )


def _record_protocol(protocol: Protocol, recording: Recording) -> Protocol:
    upstream = protocol.upstream
    return protocol if upstream is None else replace(protocol, upstream=_record_upstream(upstream, recording))


def _record_upstream(upstream: Upstream, recording: Recording) -> Upstream:
    def build(request: Request, target: Target, ledger: Ledger) -> bytes:
        body = upstream.build(request, target, ledger)
        recording.note_built(ledger)
        return body

    return replace(upstream, build=build)


class RecordingCatalogue:
    """A model catalogue that notes what it returns about single models."""

    def __init__(self, catalogue: ModelCatalogue, provider: str, recording: Recording) -> None:
        self._catalogue = catalogue
        self._provider = provider
        self._recording = recording

    @property
    def complete(self) -> bool:
        return self._catalogue.complete

    def list_known(self) -> tuple[ModelInfo, ...]:
        return self._catalogue.list_known()

    async def wait_for_list(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        return await self._catalogue.wait_for_list(at_most_s)

    def max_output(self, model: str) -> int | None:
        tokens = self._catalogue.max_output(model)
        self._recording.note_lookup(self._provider, LookupName.MAX_OUTPUT, lambda: {"value": tokens})
        return tokens

    def list_problem(self) -> str:
        problem = self._catalogue.list_problem()
        if problem:
            self._recording.note_lookup(self._provider, LookupName.LIST_PROBLEM, lambda: {"value": problem})
        return problem


class RecordingChooser:
    """A chooser of credentials that notes its choices."""

    def __init__(self, chooser: CredentialChooser, provider: str, recording: Recording) -> None:
        self._chooser = chooser
        self._provider = provider
        self._recording = recording

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        choice = self._chooser.choose(session, model, tried, now)
        member = None if choice is None else choice.member
        self._recording.note_lookup(self._provider, LookupName.CREDENTIAL, lambda: {"value": member})
        return choice

    def soonest_free(self, model: str, now: float) -> int:
        member = self._chooser.soonest_free(model, now)
        self._recording.note_lookup(self._provider, LookupName.SOONEST_CREDENTIAL, lambda: {"value": member})
        return member


class RecordingFetcher:
    """A media fetcher that notes what it fetched, or why it could not."""

    def __init__(self, fetcher: MediaFetcher, recording: Recording) -> None:
        self._fetcher = fetcher
        self._recording = recording

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        try:
            found = await self._fetcher.fetch_all(urls)
        except RequestError as error:
            failure = error.failure
            self._recording.note_lookup(
                NO_PROVIDER, LookupName.MEDIA, lambda: {"refused": msgspec.to_builtins(failure)}
            )
            raise
        if self._recording.reserve(sum(len(media.data) for media in found.values()), "fetched media"):
            self._recording.note_lookup(NO_PROVIDER, LookupName.MEDIA, lambda: {"value": msgspec.to_builtins(found)})
        return found


class RecordingMemory:
    """A memory of cut calls that notes what it recalls."""

    def __init__(self, memory: LostCallMemory, recording: Recording) -> None:
        self._memory = memory
        self._recording = recording

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        await self._memory.remember(tenant, digest, lost)

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        lost = await self._memory.recall(tenant, digests)
        self._recording.note_lookup(NO_PROVIDER, LookupName.CUT_CALLS, lambda: {"value": msgspec.to_builtins(lost)})
        return lost

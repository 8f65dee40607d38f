"""What an operator does to the gateway, done in all of its workers: in this one first, then in the others."""

import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from dragoman.accounts.keys import Keyring
from dragoman.flow.gateway import Gateway
from dragoman.net.tasks import spawn
from dragoman.providers.models import CachedCatalogue

if TYPE_CHECKING:
    from dragoman.admin.configuration import ConfigReader
    from dragoman.admin.provider_state import ProviderAccount
    from dragoman.http.worker_group import Question, WorkerGroup

RELOAD, USE_ACCOUNT, REFRESH_KEYS = "reload", "use-account", "refresh-keys"
END_COOLDOWNS, LIST_ACCOUNTS = "end-cooldowns", "list-accounts"


class ReloadSettings(Protocol):
    @property
    def read(self) -> "ConfigReader": ...


class Process(Protocol):
    """This worker's gateway."""

    @property
    def settings(self) -> ReloadSettings | None: ...
    def reload(self) -> None: ...


class EveryWorker:
    """The workers of the gateway. Another one that does not answer in time finds out later, or not at all."""

    def __init__(self, gateway: Gateway, keyring: Keyring, process: Process) -> None:
        self._gateway = gateway
        self._keyring = keyring
        self._process = process
        self._group: WorkerGroup | None = None

    def join_group(self, group: "WorkerGroup") -> None:
        """Repeat here what an operator does in another worker, and there what is done here."""
        self._group = group
        group.answer(RELOAD, self._reload)
        group.answer(USE_ACCOUNT, self._use_account)
        group.answer(REFRESH_KEYS, self._refresh_keys)
        group.answer(END_COOLDOWNS, self._end_cooldowns)
        group.answer(LIST_ACCOUNTS, self._list_accounts)

    @property
    def settings(self) -> ReloadSettings | None:
        return self._process.settings

    async def reload(self) -> None:
        """Use the configuration file as it is now."""
        await self._reload({})
        await self._ask(RELOAD)

    async def use_account(self, provider: str) -> None:
        """Read a provider's models with its new credential. One without a section appears with its credential."""
        await self._use_account({"provider": provider})
        await self._ask(USE_ACCOUNT, provider=provider)

    async def refresh_keys(self) -> None:
        """Let the other workers know that a key was created, changed or revoked in this one."""
        await self._ask(REFRESH_KEYS)

    async def end_cooldowns(self, provider: str) -> int:
        """End the cooldowns of a provider; return how many. Raises NotFound if there is no such provider."""
        ended = [await self._end_cooldowns({"provider": provider})]
        ended += await self._ask(END_COOLDOWNS, provider=provider)
        return sum(map(int, ended))

    async def list_accounts(self) -> "list[ProviderAccount]":
        """Return the state of every provider's credentials; a cooldown in one worker is one of the gateway."""
        from dragoman.admin.provider_state import ProviderAccount, merge_accounts

        answers = [await self._list_accounts({}), *await self._ask(LIST_ACCOUNTS)]
        return merge_accounts([msgspec.json.decode(answer, type=list[ProviderAccount]) for answer in answers])

    async def _ask(self, name: str, **question: str) -> list[bytes]:
        return [] if self._group is None else list((await self._group.ask_all(name, question)).values())

    # In this worker

    async def _reload(self, question: "Question") -> bytes:
        self._process.reload()
        return b""

    async def _use_account(self, question: "Question") -> bytes:
        provider = question["provider"]
        if provider not in self._gateway.runtime.providers:
            self._process.reload()
        catalogue = self._gateway.runtime.catalogues.get(provider)
        if isinstance(catalogue, CachedCatalogue):
            spawn(catalogue.refresh(), name=f"models of {provider}")
        return b""

    async def _refresh_keys(self, question: "Question") -> bytes:
        await self._keyring.refresh()
        return b""

    async def _end_cooldowns(self, question: "Question") -> bytes:
        from dragoman.admin.provider_state import end_cooldowns

        return b"%d" % end_cooldowns(self._gateway.runtime.providers, question["provider"])

    async def _list_accounts(self, question: "Question") -> bytes:
        from dragoman.admin.provider_state import list_accounts

        runtime = self._gateway.runtime
        problems = {name: catalogue.list_problem() for name, catalogue in runtime.catalogues.items()}
        return msgspec.json.encode(list_accounts(runtime.providers, problems, time.time()))

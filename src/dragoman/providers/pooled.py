"""Make the provider of a section; with several credentials, one provider that stands for all of them."""

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from dragoman.accounts.credential import PATH_ENDS, find_named_file
from dragoman.accounts.pool import Member, Pool
from dragoman.config.providers import Credential, list_credentials, split_by_credential
from dragoman.config.secret import SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.providers import KINDS
from dragoman.providers.models import fetch_models
from dragoman.providers.provider import ModelInfo, Provider, SendRequest


def make_provider(
    config: ProviderConfig, send: SendRequest, environ: Mapping[str, str], old: Provider | None = None
) -> Provider:
    """Make a provider; take over the state of credentials that stay from `old`, which it replaces."""
    members = tuple(KINDS[config.kind](section, send, environ) for section in split_by_credential(config))
    labels = credential_labels(config)
    ids = [_id(credential) for credential in list_credentials(config)] or [""]
    pool = Pool(tuple(Member(id, label) for id, label in zip(ids, labels, strict=True)))
    if old is not None and old.account.cooldowns is not None:
        pool.inherit(old.account.cooldowns)
    if len(members) == 1:
        return replace(members[0], account=replace(members[0].account, cooldowns=pool))
    pooled = tuple(
        replace(member, account=replace(member.account, pool=pool, cooldowns=pool, slot=slot, label=label))
        for slot, (member, label) in enumerate(zip(members, labels, strict=True))
    )
    union = PooledCatalogue(pooled)
    catalogue = replace(pooled[0].catalogue, list_models=union.models, rename=union.rename)
    return replace(pooled[0], catalogue=catalogue, members=pooled)


def credential_labels(config: ProviderConfig) -> tuple[str, ...]:
    """Return what each of several credentials is called in messages, without the secret."""
    credentials = list_credentials(config)
    if len(credentials) < 2:
        return ("",)
    return tuple(
        f"{number} of {len(credentials)}{_describe_place(credential)}"
        for number, credential in enumerate(credentials, 1)
    )


class PooledCatalogue:
    """The catalogue of a provider with several credentials: what any of them can use."""

    def __init__(self, members: tuple[Provider, ...]) -> None:
        self._members = members

    async def models(self) -> tuple[ModelInfo, ...]:
        """Return the models that any account has. Raises the first account's error if none can list them."""
        fetching = [fetch_models(member) for member in self._members]
        lists = await asyncio.gather(*fetching, return_exceptions=True)
        fetched = [models for models in lists if not isinstance(models, BaseException)]
        if not fetched:
            assert isinstance(lists[0], BaseException)
            raise lists[0]
        by_id: dict[str, ModelInfo] = {}
        for model in (model for models in fetched for model in models):
            by_id.setdefault(model.id, model)
        return tuple(by_id.values())

    def rename(self, name: str) -> str:
        renamed = (member.catalogue.rename(name) for member in self._members)
        return next((own for own in renamed if own != name), name)


def _describe_place(credential: Credential) -> str:
    """Return where it comes from, without directories."""
    if isinstance(credential, SecretSource):
        if credential.text.startswith("env:"):
            return f" ({credential.text})"
        file = credential.text.startswith("file:")
        path = Path(credential.text.removeprefix("file:")) if file else find_named_file(credential, PATH_ENDS)
        return f" ({path.name})" if path is not None else ""
    return f" ({credential.name})"


def _id(credential: Credential) -> str:
    text = credential.text if isinstance(credential, SecretSource) else str(credential)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()

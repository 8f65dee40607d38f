"""A stanza comes in; its provider goes out, or where it lists several credentials, one that stands for all of them."""

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from dragoman.accounts.credential_files import PATH_ENDS, find_named_file
from dragoman.accounts.pool import Member, Pool
from dragoman.config.providers import Credential, list_credentials, split_by_credential
from dragoman.config.secret import SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.providers import KINDS
from dragoman.providers.catalogue import fetch_models
from dragoman.providers.provider import ModelInfo, Provider, SendRequest


def make_provider(
    config: ProviderConfig, send: SendRequest, environ: Mapping[str, str], old: Provider | None = None
) -> Provider:
    """`old`: what an edited stanza replaces; what its pool knows of credentials that stay is kept."""
    members = tuple(KINDS[config.kind](single, send, environ) for single in split_by_credential(config))
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
    front = PooledCatalogue(pooled)
    catalogue = replace(pooled[0].catalogue, list_models=front.models, rename=front.rename)
    return replace(pooled[0], catalogue=catalogue, members=pooled)


def credential_labels(config: ProviderConfig) -> tuple[str, ...]:
    """What each of several credentials is called in messages; the secret is no part of it."""
    credentials = list_credentials(config)
    if len(credentials) < 2:
        return ("",)
    return tuple(
        f"{number} of {len(credentials)}{_place(credential)}" for number, credential in enumerate(credentials, 1)
    )


class PooledCatalogue:
    """What a provider is asked that no single one of its credentials answers."""

    def __init__(self, members: tuple[Provider, ...]) -> None:
        self._members = members

    async def models(self) -> tuple[ModelInfo, ...]:
        """What any of the accounts has; the first one's failure where none can be asked."""
        asked = [fetch_models(member) for member in self._members]
        lists = await asyncio.gather(*asked, return_exceptions=True)
        told = [models for models in lists if not isinstance(models, BaseException)]
        if not told:
            assert isinstance(lists[0], BaseException)
            raise lists[0]
        by_id: dict[str, ModelInfo] = {}
        for model in (model for models in told for model in models):
            by_id.setdefault(model.id, model)
        return tuple(by_id.values())

    def rename(self, name: str) -> str:
        renamed = (member.catalogue.rename(name) for member in self._members)
        return next((own for own in renamed if own != name), name)


def _place(credential: Credential) -> str:
    """Where it comes from, without the folders of this machine."""
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

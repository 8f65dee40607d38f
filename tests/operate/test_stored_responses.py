"""What the gateway keeps of all client keys, read from the store itself."""

import asyncio
from pathlib import Path

import pytest
from openai import OpenAI

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import NotFound
from dragoman.operate.stored_responses import open_stored
from gateway import running

ECHO = '[providers.echo]\nkind = "echo"\n'


def make_responses(directory: Path) -> list[str]:
    """Make one response of each of two keys; return their ids."""
    with running(ECHO, directory, stored=("alice", "bob")) as gateway:
        clients = [OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys[name]) for name in ("alice", "bob")]
        return [client.responses.create(model="echo", input="Hello").id for client in clients]


def read_config(directory: Path) -> Config:
    url = f"sqlite:///{directory / 'store.db'}"
    file = directory / "stored.toml"
    file.write_text(f'{ECHO}[store]\nurl = "{url}"\n')
    return ConfigSource(str(file), {}, directory, directory).read({})


def test_responses_of_all_keys_are_listed_shown_and_deleted(tmp_path: Path) -> None:
    first, second = make_responses(tmp_path)

    async def check() -> None:
        async with open_stored(read_config(tmp_path)) as stored:
            rows = await stored.list(None, 10)
            assert {row.id for row in rows} == {first, second}
            assert len({row.owner for row in rows}) == 2
            assert [row.id for row in await stored.list(rows[0].owner, 10)] == [rows[0].id]
            assert (await stored.show(first))["status"] == "completed"
            assert (await stored.measure()).responses == 2
            await stored.delete(first)
            with pytest.raises(NotFound, match="dragoman responses list"):
                await stored.show(first)
            assert [row.id for row in await stored.list(None, 10)] == [second]

    asyncio.run(check())

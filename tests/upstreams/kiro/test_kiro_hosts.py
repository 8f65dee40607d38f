"""Hosts, regions and profiles that belong together."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.config.settings import KiroProviderConfig
from dragoman.net.client import ConnectionLost, DialOptions, HttpClient, OutgoingRequest
from dragoman.net.headers import JSON
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.protocols.kiro.wire import KiroOptions
from dragoman.upstreams import Surroundings
from dragoman.upstreams.account_state import Finding
from dragoman.upstreams.kiro.credential import Credential, Method
from dragoman.upstreams.kiro.provider import fingerprint, make_kiro, user_agent
from dragoman.upstreams.kiro.services import api_region, find_addresses, read_region
from dragoman.upstreams.provider import Address, IncomingResponse, Provider, UnsignedRequest
from fakes.kiro import ARN, FakeKiro, refusal
from narrowing import expect, present
from outgoing import open_http
from upstreams.kiro.kiro_kit import ide_file, section
from wire_json import Json

RUNTIME = "https://runtime.us-east-1.kiro.dev"
EUROPEAN = "arn:aws:codewhisperer:eu-central-1:123456789012:profile/FAKEPROFILE"
SOCIAL = Credential(method=Method.DESKTOP, access_token="a", refresh_token="r")
BUILDER = Credential(method=Method.OIDC, access_token="a", refresh_token="r", builder_id=True)


@pytest.mark.parametrize(
    ("region", "api"),
    [
        ("us-east-1", "us-east-1"),
        ("eu-west-1", "eu-central-1"),
        ("eu-central-1", "eu-central-1"),
        ("ap-south-1", "us-east-1"),
    ],
)
def test_the_api_has_two_regions(region: str, api: str) -> None:
    assert api_region(region) == api


def test_the_newest_hosts_are_the_default() -> None:
    found = find_addresses(section("x.json"), SOCIAL, None)
    assert (found.chat, found.control) == (RUNTIME, "https://management.us-east-1.kiro.dev")
    assert found.generation.needs_profile


def test_an_endpoint_chooses_its_generation() -> None:
    found = find_addresses(section("x.json", endpoint="https://q.eu-central-1.amazonaws.com"), SOCIAL, None)
    assert found.generation.name == "q"
    assert not found.generation.needs_profile
    assert (
        find_addresses(
            section("x.json", endpoint="https://runtime.eu-central-1.kiro.dev"), SOCIAL, None
        ).generation.name
        == "runtime"
    )


def test_a_profile_decides_the_region() -> None:
    found = find_addresses(section("x.json"), SOCIAL, EUROPEAN)
    assert (found.chat, found.region) == ("https://runtime.eu-central-1.kiro.dev", "eu-central-1")


def test_a_builder_id_without_a_profile_uses_a_host_that_needs_none() -> None:
    assert find_addresses(section("x.json"), BUILDER, None).chat == "https://q.us-east-1.amazonaws.com"
    assert find_addresses(section("x.json"), BUILDER, ARN).chat == RUNTIME


@pytest.mark.parametrize("arn", ["", "arn:aws:s3:::x", "arn:aws:codewhisperer:us-east-1::profile/X", ARN + "/x", None])
def test_an_invalid_profile_has_no_region(arn: str | None) -> None:
    assert read_region(arn) is None


def test_the_user_agent_names_us_and_a_stable_machine() -> None:
    assert user_agent(section("x.json")).startswith("dragoman/")
    assert fingerprint() in user_agent(section("x.json"))
    assert len(fingerprint()) == 64
    assert fingerprint() == fingerprint()
    assert user_agent(section("x.json", user_agent="mine/1")) == "mine/1"


@asynccontextmanager
async def open_provider(config: KiroProviderConfig) -> AsyncIterator[Provider]:
    async with open_http() as http:
        yield make_kiro(config, Surroundings(http.send, {}))


async def inspect(config: KiroProviderConfig) -> list[Finding]:
    async with open_provider(config) as provider:
        return await present(provider.account.inspect)()


async def authorize(config: KiroProviderConfig) -> dict[bytes, bytes]:
    async with open_provider(config) as provider:
        request = UnsignedRequest("kiro", "POST", provider.endpoint.url, ())
        return dict(await provider.auth.authorize(request))


async def read_options(config: KiroProviderConfig) -> KiroOptions:
    async with open_provider(config) as provider:
        return expect(KiroOptions, await provider.requests.options("auto"))


def sign_in(fake: FakeKiro, folder: Path, **more: str) -> Path:
    """Write a file with a token that the fake accepts."""
    fake.access = {"aoaFAKE-a"}
    return ide_file(folder / "t.json", access="aoaFAKE-a", life_s=3600, **more)


def section_at(fake: FakeKiro, path: Path, **settings: object) -> KiroProviderConfig:
    addresses = {"endpoint": fake.root, "auth_endpoint": fake.root}
    return section(path, **{**addresses, **settings})


async def test_the_configured_profile_comes_before_all_others(kiro: FakeKiro, tmp_path: Path) -> None:
    mine = "arn:aws:codewhisperer:us-east-1:1:profile/MINE"
    path = sign_in(kiro, tmp_path, profileArn=ARN)
    assert (await read_options(section_at(kiro, path, profile_arn=mine))).profile_arn == mine
    assert (await read_options(section_at(kiro, path))).profile_arn == ARN
    assert kiro.counts["/ListAvailableProfiles"] == 0


async def test_an_unknown_profile_is_fetched_once(kiro: FakeKiro, tmp_path: Path) -> None:
    path = sign_in(kiro, tmp_path)
    async with open_provider(section_at(kiro, path)) as provider:
        found = await asyncio.gather(*(provider.requests.options("auto") for _ in range(20)))
        assert {options.profile_arn for options in found if isinstance(options, KiroOptions)} == {ARN}
    assert kiro.counts["/ListAvailableProfiles"] == 1


async def test_an_account_without_a_profile_is_used_without_one_if_possible(kiro: FakeKiro, tmp_path: Path) -> None:
    kiro.script("/ListAvailableProfiles", refusal(403, "unsupported", kind="AccessDeniedException"))
    path = sign_in(kiro, tmp_path)
    assert (await read_options(section_at(kiro, path))).profile_arn is None


async def test_a_host_that_needs_a_profile_gets_no_request_without_one(kiro: FakeKiro, tmp_path: Path) -> None:
    kiro.profiles = []
    path = sign_in(kiro, tmp_path)
    config = section_at(kiro, path, endpoint=RUNTIME, control_endpoint=kiro.root)
    with pytest.raises(RequestError, match="no profile") as refused:
        await read_options(config)
    assert refused.value.failure.kind is Kind.FORBIDDEN
    assert "profile_arn" in refused.value.failure.message


async def test_profiles_that_cannot_be_listed_now_are_no_missing_profile(kiro: FakeKiro, tmp_path: Path) -> None:
    """The account may have one: the request fails as the list did, and the next one lists them again."""
    kiro.script("/ListAvailableProfiles", refusal(503, "high load", kind="ServiceUnavailableException"))
    path = sign_in(kiro, tmp_path)
    config = section_at(kiro, path, endpoint=RUNTIME, control_endpoint=kiro.root)
    async with open_provider(config) as provider:
        with pytest.raises(RequestError, match="high load") as refused:
            await provider.requests.options("auto")
        assert refused.value.failure.kind is Kind.OVERLOADED
        options = await provider.requests.options("auto")
    assert expect(KiroOptions, options).profile_arn == ARN


@pytest.mark.parametrize(("arn", "words"), [("arn:nonsense", "is not valid"), (EUROPEAN, "is in eu-central-1")])
async def test_an_invalid_profile_is_rejected_without_being_sent(
    kiro: FakeKiro, tmp_path: Path, arn: str, words: str
) -> None:
    path = sign_in(kiro, tmp_path)
    config = section_at(kiro, path, endpoint=RUNTIME, control_endpoint=kiro.root, profile_arn=arn)
    with pytest.raises(RequestError, match=words) as refused:
        await read_options(config)
    assert arn not in refused.value.failure.message


async def test_models_are_listed_page_by_page_with_their_windows_and_fields(kiro: FakeKiro, tmp_path: Path) -> None:
    kiro.page = 1
    path = sign_in(kiro, tmp_path, profileArn=ARN)
    async with open_provider(section_at(kiro, path)) as provider:
        assert provider.catalogue.rename("claude-4.6-opus-high") == "claude-opus-4.6"
        listed = await present(provider.catalogue.list_models)()
        options = expect(KiroOptions, await provider.requests.options("claude-opus-4.6"))
        assert [model.id for model in listed] == ["auto", "claude-sonnet-4.5", "claude-opus-4.6"]
        assert provider.catalogue.context_window("claude-opus-4.6") == 1_000_000
        schema: Json = options.fields_schema
        assert schema["properties"]["max_tokens"]["maximum"] == 64000
    assert kiro.counts["/ListAvailableModels"] == 3
    assert "profileArn=arn%3Aaws" in next(request.path for request in kiro.requests if "Models" in request.path)


async def test_a_hanging_control_service_does_not_delay_requests(kiro: FakeKiro, tmp_path: Path) -> None:
    slow = refusal(500, "late")
    kiro.script("/ListAvailableModels", type(slow)(**{**slow.__dict__, "delay_s": 60.0}))
    path = sign_in(kiro, tmp_path, profileArn=ARN)
    began = time.monotonic()
    assert (await read_options(section_at(kiro, path))).fields_schema is None
    assert time.monotonic() - began < 20


async def test_the_account_is_inspected(kiro: FakeKiro, tmp_path: Path) -> None:
    path = sign_in(kiro, tmp_path, profileArn=ARN)

    account, usage = await inspect(section_at(kiro, path))
    assert (account.state, usage.state) == ("ok", "ok")
    assert "lists 3 models" in account.found
    assert usage.found == "KIRO FAKE: 12.5 of 50 credit used, reset on 2030-01-01"
    kiro.access = set()
    (broken,) = await inspect(section_at(kiro, path))
    assert (broken.state, broken.to_do) == ("broken", "`dragoman login kiro`")


async def test_a_truncated_refresh_token_is_reported_before_it_is_needed(
    kiro: FakeKiro, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kiro.access = {"aoaFAKE-a"}
    path = ide_file(tmp_path / "t.json", access="aoaFAKE-a", refresh="aorFAKE-cut", life_s=3600, profileArn=ARN)

    account, renewal, _ = await inspect(section_at(kiro, path))
    assert (account.state, renewal.state, renewal.to_do) == ("ok", "warning", "`dragoman login kiro`")
    assert "truncated (11 characters)" in renewal.found
    assert "truncated (11 characters)" in caplog.text
    assert "aorFAKE" not in caplog.text + renewal.found


def test_a_token_that_is_never_renewed_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    make_kiro(section("env:KIRO_API_KEY"), Surroundings(HttpClient().send, {"KIRO_API_KEY": "ksk_fake-key"}))
    assert not caplog.text


async def test_the_limit_of_a_body_is_as_configured(kiro: FakeKiro, tmp_path: Path) -> None:
    path = ide_file(tmp_path / "t.json", access="aoaFAKE-a", life_s=3600, profileArn=ARN)
    assert (await read_options(section_at(kiro, path))).max_payload_bytes is None
    assert (await read_options(section_at(kiro, path, max_payload_bytes=615_000))).max_payload_bytes == 615_000


@pytest.mark.parametrize(("method", "kind"), [("social", None), ("external_idp", b"EXTERNAL_IDP")])
async def test_a_request_states_its_kind_of_token(tmp_path: Path, method: str, kind: bytes | None) -> None:
    path = ide_file(tmp_path / "t.json", access="aoaFAKE-a", life_s=3600, authMethod=method)
    fields = await authorize(section(path))
    assert fields[b"authorization"] == b"Bearer aoaFAKE-a"
    assert fields.get(b"tokentype") == kind


async def test_an_api_key_is_marked_as_one() -> None:
    assert (await authorize(section("ksk_fake")))[b"tokentype"] == b"API_KEY"


async def test_another_account_that_signs_in_uses_its_own_hosts(tmp_path: Path) -> None:
    """The gateway was started before anyone had signed in, and then a Builder ID did."""

    async def send(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        raise ConnectionLost("connection refused", sent=False, received=False)

    provider = make_kiro(section(None), Surroundings(send, {"HOME": str(tmp_path)}))
    assert provider.endpoint.url == RUNTIME
    cache = tmp_path / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    registered = {"authMethod": "IdC", "provider": "BuilderId", "clientId": "c", "clientSecret": "s"}
    ide_file(cache / "kiro-auth-token.json", access="aoaFAKE-a", life_s=3600, **registered)
    options = await provider.requests.options("auto")
    assert expect(KiroOptions, options).profile_arn is None
    found = await present(provider.endpoint.find_address)("/generateAssistantResponse")
    assert found == Address("https://q.us-east-1.amazonaws.com/generateAssistantResponse", (JSON,))
    by_name = make_kiro(section(None, operations_by="target"), Surroundings(send, {"HOME": str(tmp_path)}))
    assert await present(by_name.endpoint.find_address)("/generateAssistantResponse") == Address(
        "https://q.us-east-1.amazonaws.com/",
        (
            (b"content-type", b"application/x-amz-json-1.0"),
            (b"x-amz-target", b"AmazonCodeWhispererStreamingService.GenerateAssistantResponse"),
        ),
    )

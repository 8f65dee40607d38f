"""An upstream that wants signed requests needs nothing but `authorize`: it sees every request as it is sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from dragoman.config.settings import ModelRoute, Retry
from dragoman.proxy.count_tokens import count_tokens
from dragoman.proxy.kept_resource import KeptResource
from dragoman.proxy.runtime import Runtime
from dragoman.proxy.steps.choose_routes import find_routes
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS
from dragoman.upstreams.models import fetch_models
from dragoman.upstreams.provider import Address, Auth, Endpoint, Provider, ReplyRules
from fakes.kiro import make_framed, tail, tool, words
from fakes.signing import DIGEST, UNSIGNED_BODY, SignatureCheck, Signer
from fakes.upstream import Answer, FakeUpstream
from outgoing import open_http
from proxy.in_memory import (
    CHAT_STREAM,
    MESSAGES,
    MESSAGES_STREAM,
    ClientReply,
    MemoryWire,
    make_call,
    make_provider,
    make_request,
    make_sink,
    make_world,
    prepare_for,
)
from proxy.relayed import answer_relayed, new_relayed_call
from proxy.rigs import STREAM, GatewayRig, document
from proxy.test_form_upload import FORM, TYPE

KEY = b"a key that is never sent"
OLD_KEY = b"a key that was replaced"
TOOL = b'"tools":[{"name":"write","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}]'


@pytest.mark.parametrize(("protocol", "body"), [("chat", CHAT_STREAM), ("messages", MESSAGES_STREAM)])
async def test_a_request_is_signed_whether_it_passes_or_is_translated(protocol: str, body: bytes) -> None:
    async with GatewayRig([Answer(STREAM)], auth=Auth(Signer(KEY).authorize)) as rig:
        rig.one.intercept = SignatureCheck(KEY)
        reply = await rig.make_call(protocol, body, [(b"x-trace", b"17")]).answer()
        assert (reply.status, len(rig.one.calls)) == (200, 1)
        assert ("x-trace" in rig.one.calls[0].headers) is (protocol == "chat")
        assert KEY not in reply.body + rig.one.calls[0].body


async def test_a_signature_that_does_not_fit_is_refused() -> None:
    async with GatewayRig([Answer(STREAM)], auth=Auth(Signer(OLD_KEY).authorize)) as rig:
        rig.one.intercept = SignatureCheck(KEY)
        with pytest.raises(RequestError) as refused:
            await rig.make_call("chat", CHAT_STREAM).answer()
        assert refused.value.failure.kind is Kind.CREDENTIAL


async def test_after_a_renewal_the_same_request_is_signed_anew() -> None:
    signer = Signer(OLD_KEY, renewed=KEY)
    async with GatewayRig([Answer(STREAM)], auth=Auth(signer.authorize, renew=signer.renew)) as rig:
        rig.one.intercept = SignatureCheck(KEY)
        reply = await rig.make_call("chat", CHAT_STREAM).answer()
        first, second = rig.one.calls
        assert (reply.status, first.body == second.body) == (200, True)
        assert first.headers["authorization"] != second.headers["authorization"]


async def test_the_request_for_the_rest_of_a_cut_call_is_signed_for_its_own_body() -> None:
    cut = make_framed(words("I write."), tool("t1", "write", input='{"path": "notes/to'), tail("MAX_TOKENS"))
    rest = make_framed(words('day.md"}'), tail())
    kiro = ReplyRules(withholds_cut_calls=True, completes_cut_calls=True)
    async with GatewayRig([cut, rest], speaks="kiro", replies=kiro, auth=Auth(Signer(KEY).authorize)) as rig:
        rig.one.intercept = SignatureCheck(KEY)
        reply = await rig.make_call("messages", MESSAGES.replace(b'"m",', b'"m",' + TOOL + b",")).answer()
        assert b"notes/today.md" in reply.body
        assert len(rig.one.calls) == 2


@dataclass
class SigningRig:
    """One provider that signs, its upstream, and a client in memory."""

    fake: FakeUpstream
    provider: Provider
    wire: MemoryWire

    @property
    def world(self) -> Runtime:
        return make_world(self.provider, retry=Retry(attempts=1), models=(ModelRoute("m", ("up/vendor-m",)),))

    @property
    def reply(self) -> ClientReply:
        return self.wire.reply


@asynccontextmanager
async def open_rig(answer: Answer) -> AsyncIterator[SigningRig]:
    with FakeUpstream([answer], intercept=SignatureCheck(KEY), models=("vendor-m",)) as fake:
        async with open_http() as client:
            endpoint = Endpoint(
                fake.url, ("messages",), client.send, relays=frozenset(RELAYED_PATHS), counts_tokens=True
            )
            provider = make_provider(endpoint=endpoint, auth=Auth(Signer(KEY).authorize))
            yield SigningRig(fake, provider, MemoryWire())


async def test_a_count_is_signed_for_its_own_address() -> None:
    async with open_rig(document(b'{"input_tokens":42}')) as rig:
        call = make_call("messages", MESSAGES)
        await find_routes(call, rig.world)
        await count_tokens(call, make_sink(rig.wire))
        assert rig.reply.body == b'{"input_tokens":42}'
        assert [request.path for request in rig.fake.calls] == ["/v1/messages/count_tokens"]


async def test_a_list_of_models_and_what_an_upstream_keeps_are_signed() -> None:
    async with open_rig(document(b"{}")) as rig:
        assert [model.id for model in await fetch_models(rig.provider)] == ["vendor-m"]
        request, sink = make_request("/v1/responses/resp_1", query="limit=2"), make_sink(rig.wire)
        await KeptResource(rig.world, "up", "", "responses", "/responses/resp_1").relay(request, sink, "req_1")
        assert rig.reply.status == 200


async def test_a_relayed_document_is_signed() -> None:
    async with open_rig(document(b'{"data":[]}')) as rig:
        call = new_relayed_call("embeddings", b'{"model":"m","input":"Hi"}')
        await answer_relayed(call, rig.world, make_sink(rig.wire))
        assert rig.reply.body == b'{"data":[]}'
        assert rig.fake.calls[0].json["model"] == "vendor-m"


async def test_a_form_that_is_sent_while_it_arrives_is_signed_without_its_body() -> None:
    async with open_rig(document(b'{"text":"Hi"}')) as rig:
        path, body = "audio/transcriptions", (FORM % b"sound").replace(b"whisper", b"m")
        call = new_relayed_call(path, body, [(b"content-type", TYPE), (b"content-length", b"%d" % len(body))])
        await answer_relayed(call, rig.world, make_sink(rig.wire))
        assert rig.reply.body == b'{"text":"Hi"}'
        [sent] = rig.fake.calls
        assert (sent.headers[DIGEST], b"vendor-m" in sent.body) == (UNSIGNED_BODY, True)


async def test_the_address_that_an_account_decides_is_the_one_that_is_signed() -> None:
    async with open_rig(document(b"{}")) as rig:

        async def find_address(path: str) -> Address:
            return Address(f"{rig.fake.url}/of-the-account{path}", ((b"x-target", b"Messages"),))

        endpoint = replace(rig.provider.endpoint, url="http://nobody.invalid", find_address=find_address)
        prepared = await prepare_for(make_call("messages", MESSAGES), replace(rig.provider, endpoint=endpoint))
        answer = await prepared.provider.send(prepared.out, 30.0)
        answer.close()
        [request] = rig.fake.calls
        assert (answer.status, request.path) == (200, "/v1/of-the-account/messages")
        assert (request.headers["x-target"], request.headers.get("content-type")) == ("Messages", None)

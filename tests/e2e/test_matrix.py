"""Every client protocol against every upstream protocol, judged by the official SDKs."""

import anthropic
import openai
import pytest
from cases import BROKEN, CASES, PHOTO, PICTURE, asked, asked_with_pictures, pictures_in
from hearing import STREAMS, WHOLE, Broke, Halted, meant_for
from meaning import Meant, Say, sayable
from rig import PROTOCOLS, SPEAKERS, Rig

from fakes.upstream import Answer, End

CUTS = {"in one piece": 0, "byte by byte": 1, "in pieces of seven": 7}

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)
cuts = pytest.mark.parametrize("cut", CUTS)


def streamed(upstream: str, meant: Meant, cut: str, end: End = End.CLEAN) -> Answer:
    return Answer(SPEAKERS[upstream].stream(sayable(meant, upstream)), cut=CUTS[cut], end=end)


def whole(upstream: str, meant: Meant) -> Answer:
    body = SPEAKERS[upstream].whole(sayable(meant, upstream))
    return Answer(body, content_type="application/json", chunked=False)


@clients
@upstreams
@pytest.mark.parametrize("case", CASES)
def test_a_whole_reply_is_heard_as_it_was_meant(rig: Rig, client: str, upstream: str, case: str) -> None:
    meant = CASES[case].meant
    rig.plays(upstream, whole(upstream, meant))
    heard = WHOLE[client](rig.sdk, asked(client, rig.model(upstream), CASES[case]))
    assert heard == meant_for(client, upstream, meant)


@clients
@upstreams
@cuts
@pytest.mark.parametrize("case", CASES)
def test_a_stream_is_heard_as_it_was_meant(rig: Rig, client: str, upstream: str, case: str, cut: str) -> None:
    meant = CASES[case].meant
    rig.plays(upstream, streamed(upstream, meant, cut))
    for listen in STREAMS[client]:
        heard = listen(rig.sdk, asked(client, rig.model(upstream), CASES[case]))
        expected = meant_for(client, upstream, meant)
        assert heard == (Halted(expected.text, expected.stop) if isinstance(heard, Halted) else expected)


@clients
@upstreams
@cuts
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("end", [End.CLEAN, End.CUT], ids=["body ended", "connection closed"])
def test_a_broken_stream_never_ends_cleanly(
    rig: Rig, client: str, upstream: str, case: str, cut: str, end: End
) -> None:
    meant = BROKEN[case]
    rig.plays(upstream, streamed(upstream, meant, cut, end))
    for listen in STREAMS[client]:
        heard = listen(rig.sdk, asked(client, rig.model(upstream)))
        assert isinstance(heard, Broke), heard
        assert isinstance(heard.error, anthropic.APIStatusError if client == "messages" else openai.APIError)
        assert heard.text == "".join(part.text for part in meant.parts if isinstance(part, Say))
        if case == "an error in mid-stream":
            assert "The engine overheated." in str(heard.error)


@clients
@upstreams
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_images_reach_the_upstream_in_its_own_shape(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    meant = CASES["text"].meant
    fake = rig.plays(upstream, streamed(upstream, meant, "in one piece") if stream else whole(upstream, meant))
    listen = STREAMS[client][0] if stream else WHOLE[client]
    assert listen(rig.sdk, asked_with_pictures(client, rig.model(upstream))) == meant_for(client, upstream, meant)
    assert pictures_in(upstream, fake.calls[-1].json) == [PICTURE, PHOTO]

"""Which protocol an upstream gets a request in, and whether the client's bytes may pass unchanged."""

from dragoman.proxy.protocol_choice import choose_protocol
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX
from dragoman.translate.hub.profile import Profile
from proxy.in_memory import make_call, make_fitting
from tables import each_row

PLAIN = b'{"model":"m"}'
TOOLS = b'{"model":"m","tools":[]}'
ENVELOPE = b'{"model":"m","signature":"%b1:abc"}' % ENVELOPE_PREFIX.encode()
ANY = Profile()
NO_CHAT_TOOLS = Profile(no_tools_in=("chat",))


@each_row(
    ("client", "speaks", "profile", "body", "protocol", "unchanged"),
    [
        ("chat", ("chat",), ANY, PLAIN, "chat", True),
        ("chat", ("responses", "chat"), ANY, PLAIN, "chat", True),
        ("messages", ("responses", "chat"), ANY, PLAIN, "responses", False),
        ("messages", ("chat", "responses"), ANY, PLAIN, "chat", False),
        ("messages", ("messages",), ANY, ENVELOPE, "messages", False),
        ("responses", ("chat",), ANY, ENVELOPE, "chat", False),
        ("chat", ("responses", "chat"), NO_CHAT_TOOLS, TOOLS, "responses", False),
        ("chat", ("responses", "chat"), NO_CHAT_TOOLS, PLAIN, "chat", True),
        ("chat", ("chat",), NO_CHAT_TOOLS, TOOLS, "chat", True),
        ("responses", ("responses", "chat"), NO_CHAT_TOOLS, TOOLS, "responses", True),
    ],
)
def test_the_protocol_that_is_chosen(
    client: str, speaks: tuple[str, ...], profile: Profile, body: bytes, protocol: str, unchanged: bool
) -> None:
    choice = choose_protocol(make_call(client, body), speaks, make_fitting(profile))
    assert (choice.protocol.name, choice.unchanged) == (protocol, unchanged)

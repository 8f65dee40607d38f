"""The tokens of a request whose reply reports none are counted on the event loop, from a sample."""

from dragoman.translate.hub.request import Request, Role, Text, Turn
from dragoman.translate.profiles.token_count import SHORT_SLICE, count_text, estimate_request_tokens

NUMBERS = " ".join(map(str, range(200_000)))


def test_a_long_text_is_sampled_in_short_slices_and_stays_near_the_exact_count() -> None:
    sampled, exact = count_text(NUMBERS, SHORT_SLICE), count_text(NUMBERS)
    assert sampled != exact
    assert abs(sampled - exact) < 0.05 * exact


def test_a_short_request_is_counted_exactly() -> None:
    request = Request("chat", "m", (Turn(Role.USER, (Text(NUMBERS[:60_000]),)),))
    assert estimate_request_tokens(request, "m", SHORT_SLICE) == estimate_request_tokens(request, "m")

"""A conversation's name is kept short in a pool, and two names stay two."""

from dragoman.flow.session import tenant_session


def test_a_long_name_is_kept_as_a_digest() -> None:
    long = [tenant_session("key", "x" * 8_000_000), tenant_session("key", "x" * 8_000_001)]
    assert all(name is not None and len(name) < 100 for name in long)
    assert long[0] != long[1] == tenant_session("key", "x" * 8_000_001)


def test_a_short_name_is_kept_as_it_is() -> None:
    assert tenant_session("key", "abc") == "key\0abc"

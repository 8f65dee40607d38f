"""Keys from the environment or a file, and what is sealed with them: opened by its own key, name and version only."""

import os
import stat
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dragoman.store.sealing import (
    VARIABLE,
    BadSecretKey,
    CannotOpen,
    Sealer,
    SealError,
    find_secret_keys,
    make_secret_file,
    make_secret_keys,
    parse_secret_keys,
    read_secret_variable,
)

ONE, TWO, THREE = (b64encode(bytes([number]) * 32).decode() for number in (1, 250, 3))


def make_sealer(text: str, purpose: str = "tests") -> Sealer:
    return Sealer(parse_secret_keys(text, "the test"), purpose)


def test_what_is_sealed_is_opened_and_does_not_show_its_content() -> None:
    sealer = make_sealer(ONE)
    sealed = sealer.seal(b"secret content", b"name 1")
    assert b"secret" not in sealed
    assert sealer.open(sealed, b"name 1") == b"secret content"
    assert sealer.seal(b"secret content", b"name 1") != sealed


def test_the_first_key_seals_and_all_open() -> None:
    old, both, new = make_sealer(ONE), make_sealer(f"{TWO}, {ONE}"), make_sealer(TWO)
    of_old, of_both = old.seal(b"a", b"x"), both.seal(b"b", b"x")
    assert (both.open(of_old, b"x"), new.open(of_both, b"x")) == (b"a", b"b")
    assert (both.has_first_key(of_old), both.has_first_key(of_both)) == (False, True)


def test_another_key_does_not_open_and_the_message_says_so() -> None:
    sealed = make_sealer(ONE).seal(b"a", b"x")
    with pytest.raises(CannotOpen, match=r"sealed with a key that the test does not have: add"):
        make_sealer(f"{TWO},{THREE}").open(sealed, b"x")


def test_a_key_for_another_purpose_does_not_open() -> None:
    with pytest.raises(CannotOpen):
        make_sealer(ONE, "others").open(make_sealer(ONE).seal(b"a", b"x"), b"x")


def test_no_changed_byte_is_accepted() -> None:
    sealer = make_sealer(ONE)
    sealed = sealer.seal(b"content", b"name")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(CannotOpen):
            sealer.open(bytes(changed), b"name")
    for length in range(len(sealed)):
        with pytest.raises(CannotOpen):
            sealer.open(sealed[:length], b"name")


def test_a_value_from_another_name_or_version_is_not_accepted() -> None:
    sealer = make_sealer(ONE)
    with pytest.raises(CannotOpen, match="another name or version"):
        sealer.open(sealer.seal(b"content", b"team\x001"), b"team\x002")


@pytest.mark.parametrize(
    "text",
    [
        "short",
        "no base64 at all, is it?",
        ONE[:-4],
        ONE + ONE,
        f"{ONE},",
        f",{ONE}",
        f"{ONE},{TWO[:-8]}",
        f"{ONE};{TWO}",
        ",".join([ONE] * 17),
    ],
)
def test_a_value_of_another_form_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(BadSecretKey, match=r"\$DRAGOMAN_SECRET_KEY must be the base64 of 32 bytes") as refused:
        read_secret_variable({VARIABLE: text})
    assert all(part not in str(refused.value) for part in text.split(",") if len(part) > 8)


def test_both_alphabets_of_base64_are_read() -> None:
    assert make_sealer(TWO.replace("+", "-").replace("/", "_")).open(make_sealer(TWO).seal(b"a", b""), b"") == b"a"


def test_keys_are_never_printed() -> None:
    keys = parse_secret_keys(ONE, "the test")
    assert ONE not in repr(keys)
    assert repr(keys) == str(keys) == "SecretKeys(1 from the test)"


def test_an_empty_variable_is_none() -> None:
    assert read_secret_variable({VARIABLE: " "}) is None


def test_the_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "data" / "secret.key"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: make_secret_file(file), range(16)))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["secret.key"]
    sealed = Sealer(make_secret_file(file), "tests").seal(b"a", b"x")
    assert make_sealer(file.read_text()).open(sealed, b"x") == b"a"  # its content is a value for the variable


def test_the_environment_is_used_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    assert make_secret_keys({VARIABLE: ONE}, file).place == f"${VARIABLE}"
    assert not file.exists()
    assert make_secret_keys({}, file).place == str(file)
    assert find_secret_keys({VARIABLE: ONE}, file).place == f"${VARIABLE}"


def test_a_lost_file_is_named_and_not_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    with pytest.raises(SealError, match=r"secret\.key does not exist: put it back"):
        find_secret_keys({}, file)
    assert not file.exists()


def test_postgresql_needs_a_key_in_the_environment() -> None:
    with pytest.raises(SealError, match=r"PostgreSQL keeps none: set \$DRAGOMAN_SECRET_KEY"):
        make_secret_keys({}, None)

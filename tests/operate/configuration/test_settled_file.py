"""A file that is being saved is read once it is whole."""

from pathlib import Path

from dragoman.config.load import Stamp, stamp_file
from dragoman.operate.configuration.settled_file import EMPTY_S, SETTLE_S, FileReading, read_settled

OLD, NEW = "[server]\nport = 1\n", "[server]\nport = 2\n"


async def read_while(file: Path, writes: dict[int, str]) -> tuple[FileReading, int]:
    """Return what is read, and how many pauses it took; `writes` has what is saved in the pause of this number."""
    pauses, write = 0, file.write_text

    async def sleep(seconds: float) -> None:
        nonlocal pauses
        assert seconds == SETTLE_S
        pauses += 1
        if pauses in writes:
            write(writes[pauses])

    def take_stamp() -> Stamp:
        return Stamp(stamp_file(lambda: file))

    return await read_settled(take_stamp, sleep), pauses


EMPTY_PAUSES = round(EMPTY_S / SETTLE_S)


async def test_what_two_reads_agree_on_is_taken_and_an_empty_file_only_after_a_while(tmp_path: Path) -> None:
    rows: tuple[tuple[str, dict[int, str], str, int], ...] = (
        # at first, what is written in which pause, what is read, after how many pauses
        (NEW, {}, NEW, 1),
        ("", {1: NEW}, NEW, 2),
        ("", {EMPTY_PAUSES: NEW}, NEW, EMPTY_PAUSES + 1),
        ("", {}, "", EMPTY_PAUSES),
        (" \n", {}, " \n", EMPTY_PAUSES),
        ("", {5: "\n"}, "\n", EMPTY_PAUSES + 5),
        (NEW[:5], {1: NEW[:9], 2: NEW}, NEW, 3),
        (OLD, {1: "", 3: NEW}, NEW, 4),
        ("# nothing but a comment", {}, "# nothing but a comment", 1),
    )
    for first, writes, text, pauses in rows:
        file = tmp_path / "dragoman.toml"
        file.write_text(first)
        reading, waited = await read_while(file, writes)
        assert (reading.text, waited) == (text, pauses), (first, writes)
        assert reading.stamp == Stamp(stamp_file(lambda: tmp_path / "dragoman.toml"))


async def test_a_missing_file_and_one_that_is_no_text_are_left_to_the_reader_of_the_configuration(
    tmp_path: Path,
) -> None:
    missing, _ = await read_while(tmp_path / "dragoman.toml", {})
    assert (missing.content, missing.text) == (None, None)
    (tmp_path / "dragoman.toml").write_bytes(b"\xff\xfe")
    binary, _ = await read_while(tmp_path / "dragoman.toml", {})
    assert (binary.content, binary.text) == (b"\xff\xfe", None)

"""Each worker posts its readings on a board that all of them share; whoever is asked reads the whole of it.

The board is a file without a name, opened before the workers are forked: nobody else can open it, and nothing is left
of it afterwards. A worker that takes the seat of a dead one counts on from where that one stood, so that no sum falls.
"""

import fcntl
import os
import struct
import tempfile
import time
from collections.abc import Iterable
from zlib import crc32

import msgspec

from dragoman.observers.metrics_text import Reading, counted, joined

SLOT_BYTES = 16 * 1024 * 1024  # the file has holes: only what is posted takes up space
STALE_S = 10.0  # a worker that has posted nothing for so long is not there
TRIES = 5

_HEAD = struct.Struct("<IId")  # length, check sum, when by the clock that all processes share
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Reading]).decode


class Post(msgspec.Struct, frozen=True):
    at: float
    readings: list[Reading]


NOTHING = Post(0.0, [])


class Board:
    """Made by the parent, with one seat for each worker."""

    def __init__(self, seats: int) -> None:
        self._file = tempfile.TemporaryFile(prefix="dragoman-")  # noqa: SIM115 - lives as long as the process
        self._seats = seats

    def sit_down(self) -> "Seat":
        """In a worker: takes a seat that no living worker has. A process's locks end with it, however it ends."""
        for place in range(self._seats):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError:
                continue
            return Seat(self._file.fileno(), place, self._seats)
        raise OSError("more workers than seats")


class Seat:
    """One worker's place at the board."""

    def __init__(self, file: int, place: int, seats: int) -> None:
        self._file = file
        self._place = place
        self._seen = [NOTHING] * seats  # what could last be read of each
        self._inherited = joined(counted(self._read(place).readings))

    def post(self, readings: Iterable[Reading]) -> None:
        """Raises OSError where there is no room for it."""
        payload = _encode([*readings, *self._inherited])
        if len(payload) > SLOT_BYTES - _HEAD.size:
            raise OSError("more readings than the board has room for")
        head = _HEAD.pack(len(payload), crc32(payload), time.monotonic())
        os.pwrite(self._file, head + payload, self._place * SLOT_BYTES)

    def read_all(self) -> list[Reading]:
        now = time.monotonic()
        found: list[Reading] = []
        for place in range(len(self._seen)):
            post = self._read(place)
            found += post.readings if now - post.at < STALE_S else counted(post.readings)
        return found

    def _read(self, place: int) -> Post:
        """A post may be read while it is being written; then again, and at worst the one before it is taken."""
        for _ in range(TRIES):
            post = self._glimpsed(place)
            if post is not None:
                self._seen[place] = post
                break
        return self._seen[place]

    def _glimpsed(self, place: int) -> Post | None:
        head = os.pread(self._file, _HEAD.size, place * SLOT_BYTES)
        if len(head) < _HEAD.size:
            return NOTHING
        length, check, at = _HEAD.unpack(head)
        payload = os.pread(self._file, length, place * SLOT_BYTES + _HEAD.size)
        if len(payload) != length or crc32(payload) != check:
            return None
        return Post(at, _decode(payload)) if payload else NOTHING

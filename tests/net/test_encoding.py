"""Every coding is decoded to the original bytes, within its limit, however it is cut; malformed data is an error."""

import gzip
import itertools
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.net.encoding import PIECE, StreamDecompressor, decompress, make_decoders
from dragoman.net.errors import InvalidEncoding, SizeLimitExceeded

SEED = random.Random(7)
PLAIN = b"".join(b'{"n":%d,"v":"%x"}\n' % (n, SEED.getrandbits(64)) for n in range(1500))


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def streamed_zstd(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return (
        stream.compress(data[: len(data) // 2])
        + stream.flush(1)
        + stream.compress(data[len(data) // 2 :])
        + stream.flush()
    )


Pack = Callable[[bytes], bytes]
PACKERS: dict[str, tuple[bytes, Pack]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"X-GZip", gzip.compress),
    "gzip members": (b"gzip", lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:])),
    "zlib": (b"deflate", zlib.compress),
    "bare deflate": (b"deflate", bare_deflate),
    "zstd": (b"zstd", zstandard.compress),
    "zstd stream": (b"zstd", streamed_zstd),
    "zstd frames": (b"zstd", lambda data: zstandard.compress(data[:1000]) + zstandard.compress(data[1000:])),
    "identity": (b"identity", bytes),
    "none": (b"", bytes),
    "gzip, zstd": (b"gzip, zstd", lambda data: zstandard.compress(gzip.compress(data))),
    "three": (
        b"zstd,identity,gzip , deflate",
        lambda data: zlib.compress(gzip.compress(zstandard.compress(data))),
    ),
}
PACKED = [name for name in PACKERS if name not in ("identity", "none")]
every_packer = pytest.mark.parametrize("packer", PACKERS)
packed_only = pytest.mark.parametrize("packer", PACKED)


def unpack(encoding: bytes, pieces: list[bytes]) -> bytes:
    unpacking = StreamDecompressor(make_decoders(encoding))
    out = []
    for piece in pieces:
        unpacking.put(piece)
        while data := unpacking.take():
            out.append(data)
    unpacking.finish()
    return b"".join(out)


@every_packer
def test_what_was_packed_comes_back_whole(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    assert decompress(encoding, pack(PLAIN), len(PLAIN)) == PLAIN


@packed_only
def test_byte_by_byte_gives_the_same(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    packed = pack(PLAIN)
    assert unpack(encoding, [packed[at : at + 1] for at in range(len(packed))]) == PLAIN


@packed_only
@given(plain=st.binary(max_size=300), cuts=st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=20, deadline=None)
def test_any_cut_of_any_bytes_gives_the_same(packer: str, plain: bytes, cuts: list[int]) -> None:
    encoding, pack = PACKERS[packer]
    packed = pack(plain)
    edges = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    pieces = [packed[a:b] for a, b in itertools.pairwise(edges)]
    assert unpack(encoding, pieces) == plain


def test_nothing_that_could_be_decoded_is_held_back() -> None:
    packed = zlib.compress(bytes(200_000))
    for cut in range(2, len(packed)):
        (decoder,) = make_decoders(b"deflate")
        assert len(decoder.feed(packed[:cut], 1 << 20)) == len(zlib.decompressobj().decompress(packed[:cut]))


@every_packer
def test_one_byte_over_the_limit_is_too_large(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    with pytest.raises(SizeLimitExceeded):
        decompress(encoding, pack(PLAIN), len(PLAIN) - 1)


@pytest.mark.parametrize("packer", [name for name in PACKED if name not in ("gzip members", "zstd frames")])
def test_every_truncation_is_reported(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    plain = PLAIN[:3000]
    packed = pack(plain)
    for cut in range(1, len(packed)):
        with pytest.raises(InvalidEncoding):
            decompress(encoding, packed[:cut], len(plain))


@packed_only
@pytest.mark.parametrize("lie", [b'{"error":"plain"}', b"<html>no</html>" * 50, bytes(100), b"x"])
def test_plain_bytes_under_a_coding_are_reported(packer: str, lie: bytes) -> None:
    with pytest.raises(InvalidEncoding):
        decompress(PACKERS[packer][0], lie, 1 << 20)


@pytest.mark.parametrize("encoding", [b"compress", b"utf-8", b"gzip, snappy", b"gzip,gzip,gzip,gzip"])
def test_an_unknown_coding_or_too_many_are_refused(encoding: bytes) -> None:
    with pytest.raises(InvalidEncoding):
        decompress(encoding, b"", 100)


def test_bytes_after_the_end_are_refused() -> None:
    for encoding, packed in ((b"gzip", gzip.compress(b"a")), (b"deflate", zlib.compress(b"a"))):
        with pytest.raises(InvalidEncoding):
            decompress(encoding, packed + b"junk", 100)


BOMBS = {
    b"gzip": gzip.compress(bytes(16 << 20)),
    b"deflate": zlib.compress(bytes(16 << 20)),
    b"zstd": zstandard.compress(bytes(16 << 20)),
    b"gzip, gzip": gzip.compress(gzip.compress(bytes(16 << 20))),
}


def least_time(refusal: type[Exception], encoding: bytes, packed: bytes, limit: int) -> float:
    """Of a few tries: in one of them the garbage of all earlier tests may be collected."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(refusal):
            decompress(encoding, packed, limit)
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.parametrize("encoding", BOMBS)
def test_a_bomb_costs_no_more_memory_than_its_limit_and_little_time(encoding: bytes) -> None:
    limit = 1 << 20
    assert least_time(SizeLimitExceeded, encoding, BOMBS[encoding], limit) < 0.5
    tracemalloc.start()
    with pytest.raises(SizeLimitExceeded):
        decompress(encoding, BOMBS[encoding], limit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The buffer that collects the output grows in steps of an eighth.
    assert peak < limit * 9 / 8 + (96 << 10)


def test_a_zstd_window_larger_than_the_standard_allows_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed = stream.compress(PLAIN) + stream.flush()
    with pytest.raises(InvalidEncoding):
        decompress(b"zstd", packed, len(PLAIN))


def test_thousands_of_empty_gzip_members_are_refused_cheaply() -> None:
    assert least_time(InvalidEncoding, b"gzip", gzip.compress(b"") * 100_000, 1 << 20) < 0.5


def test_pieces_taken_from_a_bomb_stay_small() -> None:
    unpacking = StreamDecompressor(make_decoders(b"gzip"))
    unpacking.put(BOMBS[b"gzip"])
    sizes = []
    while piece := unpacking.take():
        sizes.append(len(piece))
    assert sum(sizes) == 16 << 20
    assert max(sizes) <= PIECE


def test_a_few_bytes_that_become_very_many_are_refused() -> None:
    unpacking = StreamDecompressor(make_decoders(b"zstd"))
    unpacking.put(BOMBS[b"zstd"])
    with pytest.raises(SizeLimitExceeded):
        list(iter(unpacking.take, b""))

"""Zstandard (RFC 8878): of the standard library since Python 3.14, of its backport before. Import it where needed."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError, compress
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError, compress

__all__ = ["ZstdError", "compress", "decompress", "make_frame_decoder"]


def make_frame_decoder(window_log: int) -> ZstdDecompressor:
    """Return the decoder of one frame that may need a window of this size, given as a power of two."""
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: window_log})


def decompress(data: bytes, limit: int) -> bytes:
    """Return the content of one frame; raises ZstdError if it is not complete, or longer than `limit` bytes."""
    decoder = ZstdDecompressor()
    content: bytes = decoder.decompress(data, limit)
    if not decoder.eof:
        raise ZstdError("the frame is incomplete or too long")
    return content

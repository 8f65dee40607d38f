"""Read the files that ship with this package: the table of models, and the vocabulary that counts tokens."""

from pathlib import Path


def read_shipped(name: str) -> bytes:
    """Return the content of a file beside this module."""
    return (Path(__file__).parent / name).read_bytes()

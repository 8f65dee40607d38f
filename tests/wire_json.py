"""The type of decoded JSON in tests."""

from typing import Any

# Tests look deep into replies and requests whose shape is what they assert: a wrong shape fails the test right there.
Json = Any
JsonObject = dict[str, Json]

"""Names of Gemini's protocol as they stand on the wire."""

from dragoman.hub.ports import KeyPlaces

NAME = "gemini"
KEYS = KeyPlaces(headers=(b"x-goog-api-key",), parameters=("key",))
CLIENT_HEADERS = (b"x-goog-api-key", b"x-goog-api-client")  # Google's SDKs send at least one of them
OPERATION = "generate_content"

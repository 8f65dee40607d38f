"""What a client must be told: an address and a model."""

from msgspec import Struct

KEY_VARIABLE = "DRAGOMAN_API_KEY"


class Target(Struct, frozen=True):
    """`root` is the gateway's address without a path; `model` is None where the person must choose."""

    root: str
    model: str | None = None

    @property
    def api(self) -> str:
        """The address as OpenAI's clients want it, with the version."""
        return f"{self.root}/v1"

    @property
    def model_or_placeholder(self) -> str:
        return self.model or "MODEL"

"""The schema of a model's own request fields and values for them come in; whether the model takes them goes out."""

from collections.abc import Iterator

import jsonschema_rs

Schema = dict[str, object]

_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 20


class NativeFields:
    """`additionalModelRequestFieldsSchema`: a value that does not satisfy it costs the whole request."""

    __slots__ = ("_schema",)

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def declares(self, *path: str) -> bool:
        """Whether the schema speaks of such a field; what it does not mention may be refused."""
        return next(self._schemas_at(path), None) is not None

    def accepts(self, fields: Schema) -> bool:
        try:
            return bool(jsonschema_rs.is_valid(self._schema, fields, offline=True))
        except ValueError:  # the schema itself is wrong
            return False

    def maximum(self, *path: str) -> int | None:
        told = [schema.get("maximum") for schema in self._schemas_at(path)]
        return min((int(most) for most in told if isinstance(most, int | float)), default=None)

    def _schemas_at(self, path: tuple[str, ...]) -> Iterator[Schema]:
        found = [self._schema]
        for name in path:
            found = [
                schema
                for holder in found
                for branch in self._branches(holder, 0)
                if isinstance(schema := _properties(branch).get(name), dict)
            ]
        for schema in found:
            yield from self._branches(schema, 0)

    def _branches(self, schema: Schema, depth: int) -> Iterator[Schema]:
        """The schema itself and whatever it is composed of."""
        if depth > _MAX_DEPTH:
            return
        yield schema
        for key in _BRANCHES:
            branches = schema.get(key)
            for branch in branches if isinstance(branches, list) else ():
                if isinstance(branch, dict):
                    yield from self._branches(branch, depth + 1)
        referred = self._referred(schema.get("$ref"))
        if referred is not None:
            yield from self._branches(referred, depth + 1)

    def _referred(self, reference: object) -> Schema | None:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: object = self._schema
        for name in reference[2:].split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}

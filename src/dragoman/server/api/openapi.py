"""Describe the admin API as an OpenAPI 3.1 document, made from the routes and their operations."""

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from dragoman import __version__
from dragoman.server.api.wire import (
    IDEMPOTENCY_KEY,
    IF_MATCH,
    JSON_LINES,
    MAX_IDEMPOTENCY_KEY,
    PREFIX,
    DescribedHandler,
    Description,
    ErrorBody,
    Operation,
    QueryParameter,
    Write,
    respond_bytes,
)
from dragoman.server.routes import NAMED_PART, HttpRoute, RoutedRequest
from dragoman.translate.protocols import KEY_PLACES

JsonSchema = dict[str, object]
JSON_TYPE = "application/json"
SCHEMA_PLACE = "#/components/schemas/{name}"
ABOUT = (
    "Administer a dragoman gateway. Send the owner's key or an admin token; where an operation lists a scope, the "
    "token must have it. Operations with the role `own` also accept a client key, which sees only what belongs to it."
)
SECURITY_SCHEMES: dict[str, JsonSchema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    **{name.decode(): {"type": "apiKey", "in": "header", "name": name.decode()} for name in KEY_PLACES.headers},
    **{name: {"type": "apiKey", "in": "query", "name": name} for name in KEY_PLACES.parameters},
}
ETAG: JsonSchema = {"ETag": {"description": "The version, for If-Match.", "schema": {"type": "string"}}}

READ_DOCUMENT = Operation("Describe this API as an OpenAPI document.", (dict[str, object],))


class ApiDocument:
    """The description of the routes that a gateway serves below PREFIX."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self._routes = routes

    @cached_property
    def _body(self) -> bytes:
        return msgspec.json.encode(describe_routes(self._routes))

    @READ_DOCUMENT.handled_by
    async def read_document(self, request: RoutedRequest) -> None:
        READ_DOCUMENT.read_query(request)
        respond_bytes(request, self._body)


def describe_routes(routes: Iterable[HttpRoute]) -> dict[str, object]:
    """Return the document as JSON values."""
    described = [(route, route.described()) for route in routes if route.described is not None]
    schemas = _Schemas([handler.operation for _, handler in described])
    paths: dict[str, dict[str, object]] = {}
    for route, handler in described:
        paths.setdefault(route.path, {})[route.method.lower()] = _describe(route, handler, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dragoman admin API", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": SECURITY_SCHEMES},
    }


class _Schemas:
    """The schemas of all types that operations take and answer."""

    def __init__(self, operations: Iterable[Description]) -> None:
        types = list(dict.fromkeys(one for operation in operations for one in _list_types(operation)))
        schemas, components = msgspec.json.schema_components(
            [ErrorBody, *types], schema_hook=_allow_any, ref_template=SCHEMA_PLACE
        )
        self._schemas: dict[type, JsonSchema] = dict(zip([ErrorBody, *types], schemas, strict=True))
        self.components: dict[str, JsonSchema] = components

    def find(self, *types: type) -> JsonSchema:
        found = [self._schemas[one] for one in types]
        return found[0] if len(found) == 1 else {"oneOf": found}


def _list_types(operation: Description) -> list[type]:
    body = [operation.body] if isinstance(operation, Write) else []
    return [*operation.replies, *operation.refusals.values(), *body]


def _allow_any(kind: type) -> JsonSchema:
    """Return the schema of a type that msgspec has none for: `object` is any JSON value."""
    assert kind is object, kind
    return {"description": "Any JSON value."}


def _describe(route: HttpRoute, handler: DescribedHandler, schemas: _Schemas) -> JsonSchema:
    operation = handler.operation
    described: JsonSchema = {
        "operationId": handler.name,
        "summary": operation.summary,
        "tags": [route.path.removeprefix(PREFIX).partition("/")[0]],
        "security": _list_security(route),
        "x-dragoman-role": route.role.value,
        "parameters": _list_parameters(route, operation),
        "responses": _list_responses(operation, schemas),
    }
    if isinstance(operation, Write):
        content = {JSON_TYPE: {"schema": schemas.find(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _list_security(route: HttpRoute) -> list[JsonSchema]:
    """Return the ways to send a key. OpenAPI 3.1 allows roles here for every kind of scheme: ours are scopes."""
    scopes = [] if route.scope is None else [route.scope.value]
    return [{name: scopes} for name in SECURITY_SCHEMES]


def _list_parameters(route: HttpRoute, operation: Description) -> list[JsonSchema]:
    found = [_describe_parameter(parameter) for parameter in operation.query]
    for part in NAMED_PART.findall(route.path):
        found.append({"name": part.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}})
    if isinstance(operation, Write) and operation.repeatable:
        about = "Makes a repetition of the request within a day get the same answer, without a secret."
        schema: JsonSchema = {"type": "string", "maxLength": MAX_IDEMPOTENCY_KEY}
        found.append(
            {"name": IDEMPOTENCY_KEY, "in": "header", "required": False, "description": about, "schema": schema}
        )
    if operation.versioning in ("checked", "required"):
        is_required = operation.versioning == "required"
        about = "The ETag of what was read." if is_required else "The ETag of what was read, or *."
        schema = {"type": "string"}
        found.append(
            {"name": IF_MATCH, "in": "header", "required": is_required, "description": about, "schema": schema}
        )
    return found


def _describe_parameter(parameter: QueryParameter) -> JsonSchema:
    return {"name": parameter.name, "in": "query", "description": parameter.about, "schema": parameter.schema}


def _list_responses(operation: Description, schemas: _Schemas) -> Mapping[str, JsonSchema]:
    replies = schemas.find(*operation.replies)
    content = {
        name: {"schema": replies if name in (JSON_TYPE, JSON_LINES) else {"type": "string"}}
        for name in operation.media_types
    }
    about = "Each line is a JSON value of this schema." if JSON_LINES in operation.media_types else "Done."
    headers: JsonSchema = {} if operation.versioning == "none" else {"headers": ETAG}
    responses: dict[str, JsonSchema] = {str(operation.status): {"description": about, "content": content} | headers}
    for status, kind in operation.refusals.items():
        refused = {JSON_TYPE: {"schema": schemas.find(kind)}}
        responses[str(status)] = {"description": "Nothing was done.", "content": refused} | headers
    errors = {JSON_TYPE: {"schema": schemas.find(ErrorBody)}}
    return responses | {"default": {"description": "An error; nothing was changed.", "content": errors}}

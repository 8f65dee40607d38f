"""A JSON Schema of any vendor comes in; one that Anthropic accepts goes out, its other demands told in words."""

from dragoman.framing.schematext import Schema, with_words

# No set: what a client gives as a format may be a list, which cannot be looked up in one.
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_KEPT = frozenset({"type", "enum", "const", "title", "required", "default", "description"})
_SILENT = frozenset({"additionalProperties", "$schema", "$id", "$comment"})  # nothing to tell a model
_NAMED = frozenset({"properties", "$defs", "definitions"})  # their keys are names, their values are schemas
_CHOICES = {"oneOf": "anyOf", "anyOf": "anyOf", "allOf": "allOf"}


def clean_output(schema: object) -> object:
    """The schema of a structured output: objects are closed, and limits move into descriptions."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:  # a reference stands alone, but the root also holds what is referred to
        kept: Schema = {"$ref": schema["$ref"]}
        return kept | {key: _each(value) for key, value in schema.items() if key in ("$defs", "definitions")}
    clean: Schema = {}
    told: Schema = {}
    for key, value in schema.items():
        if key in _KEPT or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1)):
            clean[key] = value
        elif key in _NAMED:
            clean[key] = _each(value)
        elif key in _CHOICES and isinstance(value, list) and _CHOICES[key] not in clean:
            clean[_CHOICES[key]] = [clean_output(choice) for choice in value]
        elif key == "items" and isinstance(value, dict):
            clean[key] = clean_output(value)
        elif key not in _SILENT or isinstance(value, dict):  # what a map's values are is worth telling
            told[key] = value
    if schema.get("type") == "object" or "properties" in schema:
        clean["additionalProperties"] = False
    return with_words(clean, told)


def _each(schemas: object) -> object:
    if not isinstance(schemas, dict):
        return schemas
    return {name: clean_output(schema) for name, schema in schemas.items()}

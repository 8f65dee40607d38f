"""Requests of the hub with any of their fields, also those of their records, by name."""

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.request import Attribution, ReplyExtras, Request, Sampling, VendorTerms

RECORDS: dict[str, type[Struct]] = {
    "sampling": Sampling,
    "attribution": Attribution,
    "extras": ReplyExtras,
    "vendor": VendorTerms,
}


def set_fields(request: Request, **fields: object) -> Request:
    """Return the request with other values of these fields."""
    for name, record in RECORDS.items():
        own = {field: fields.pop(field) for field in record.__struct_fields__ if field in fields}
        if own:
            fields[name] = record(**own)
    return replace(request, **fields)

"""Write src/dragoman/operate/prices/sheet.json, one model per line, from the prices of the genai-prices package.

Prices become whole picodollars (10**-12 US dollars) per token, search or request; one that rises with the input is
[base, tokens, price above them, ...].
"""

from datetime import time
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path

import msgspec
from genai_prices import types as theirs
from genai_prices.data import providers

SHEET = Path(__file__).parent.parent / "src" / "dragoman" / "operate" / "prices" / "sheet.json"
VENDORS = (
    *("anthropic", "openai", "google", "x-ai", "github-copilot", "deepseek", "mistral", "moonshotai", "zai"),
    *("minimax", "cohere", "groq", "cerebras", "fireworks", "together", "perplexity", "openrouter"),
)
PICO = 10**12
UNITS = {  # theirs -> ours, and how many of them the price is for
    "input_mtok": ("input", 10**6),
    "cache_read_mtok": ("cache_read", 10**6),
    "cache_write_mtok": ("cache_write", 10**6),
    "cache_write_1h_mtok": ("cache_write_1h", 10**6),
    "output_mtok": ("output", 10**6),
    "output_reasoning_mtok": ("reasoning", 10**6),
    "web_searches_kcount": ("web_search", 10**3),
    "requests_kcount": ("request", 10**3),
}
# A model that is priced by anything else than these, which we do not count, gets no price from us.
ASIDE = {"storage_searches_kcount", "social_searches_kcount", "code_executions_kcount"}
MEDIA = ("audio", "image", "video")


def main() -> None:
    SHEET.write_text(render_sheet())
    print(f"{SHEET.name}: {SHEET.stat().st_size // 1024} KB")


def render_sheet() -> str:
    package = distribution("genai-prices")
    (licence,) = [file for file in package.files or () if file.name == "LICENSE"]
    head = {"source": f"genai-prices {package.version}", "licence": " ".join(licence.read_text().split())}
    lines = [f'  "{key}": {_json(value)},' for key, value in head.items()]
    vendors = [_vendor(provider) for provider in providers if provider.id in VENDORS]
    return "\n".join(["{", *lines, '  "vendors": {', ",\n".join(vendors), "  }", "}\n"])


def _vendor(provider: theirs.Provider) -> str:
    models = [f"      {_json(model)}" for model in map(_model, provider.models) if model]
    body = ",\n".join(models)
    return f'    "{provider.id}": {{"hosts": {_json(provider.api_pattern)}, "models": [\n{body}\n    ]}}'


def _model(model: theirs.ModelInfo) -> dict[str, object] | None:
    prices = model.prices if isinstance(model.prices, list) else [theirs.ConditionalPrice(prices=model.prices)]
    rates = [_rates(price.prices) | _when(price.constraint) for price in prices]
    if any("input" not in rate and "output" not in rate for rate in rates):
        return None
    found: dict[str, object] = {"id": model.id, "match": _match(model.match), "rates": rates}
    tiers = [
        {"tier": variant.when["service_tier"]} | _rates(variant.prices) | _when(variant.constraint)
        for variant in model.price_variants or ()
        if list(variant.when) == ["service_tier"] and _rates(variant.prices)
    ]
    return found | {"tiers": tiers} if tiers else found


def _rates(price: theirs.ModelPrice) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in vars(price).items():
        if value is None or key in ASIDE or any(word in key for word in MEDIA):
            continue
        if key not in UNITS:
            return {}
        name, per = UNITS[key]
        if isinstance(value, theirs.TieredPrices):
            steps = [number for tier in value.tiers for number in (tier.start, _pico(tier.price, per))]
            found[name] = [_pico(value.base, per), *steps]
        else:
            found[name] = _pico(value, per)
    return found


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _pico(price: Decimal, per: int) -> int:
    return round(price * PICO / per)


def _when(constraint: object) -> dict[str, str]:
    match constraint:
        case None:
            return {}
        case theirs.StartDateConstraint(start_date=day):
            return {"since": day.isoformat()}
        case theirs.TimeOfDateConstraint(start_time=begin, end_time=end):
            return {"hours": f"{_utc(begin)}-{_utc(end)}"}
    raise ValueError(f"a condition of a new kind: {constraint}")


def _utc(moment: time) -> str:
    return theirs._utc_timetz(moment).strftime("%H:%M")


def _match(clause: object) -> object:
    match clause:
        case theirs.ClauseEquals(equals=text):
            return f"={text.lower()}"
        case theirs.ClauseStartsWith(starts_with=text):
            return f"^{text.lower()}"
        case theirs.ClauseEndsWith(ends_with=text):
            return f"${text.lower()}"
        case theirs.ClauseContains(contains=text):
            return f"*{text.lower()}"
        case theirs.ClauseRegex(regex=text):
            return f"~{text}"
        case theirs.ClauseOr(or_=parts):
            return ["or", *map(_match, parts)]
        case theirs.ClauseAnd(and_=parts):
            return ["and", *map(_match, parts)]
    raise ValueError(f"a clause of a new kind: {clause}")


if __name__ == "__main__":
    main()

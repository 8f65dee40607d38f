"""Costs equal those of the package that the price sheet is made from; without a known price there is none."""

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from random import Random

import genai_prices
from genai_prices.data import providers as their_providers
from msgspec.structs import replace

from dragoman.config.settings import PriceOverride, ProviderConfig, ProviderKind
from dragoman.operate.prices import PricedModel, Pricing, Rates, cost_nano, list_models, load_sheet, utc_datetime
from dragoman.proxy.outcome import OK, Outcome, ToolRun
from dragoman.translate.hub.usage import Usage
from tables import each_row

NOW = 1_800_000_000.0
MOMENTS = (NOW, 1_700_000_000.0, 1_760_000_000.0 + 3 * 3600)
OURS = {vendor.id: vendor for vendor in their_providers if vendor.id in load_sheet().vendors}

ANTHROPIC = ProviderConfig(name="up", kind="anthropic", endpoint="https://api.anthropic.com/v1")


def cost_of_package(vendor: str, model: str, usage: Usage, moment: float) -> int:
    usage_of_package = genai_prices.Usage(
        input_tokens=usage.input,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        cache_write_1h_tokens=usage.cache_write_1h,
        output_tokens=usage.output,
        output_reasoning_tokens=usage.reasoning,
        web_searches=usage.web_searches,
    )
    (info,) = [found for found in OURS[vendor].models if found.id == model]
    context = {"service_tier": usage.service_tier} if usage.service_tier else None
    when = datetime.fromtimestamp(moment, UTC)
    price = info.calc_price(usage_of_package, OURS[vendor], genai_request_timestamp=when, price_context=context)
    return int((price.total_price * 10**9).quantize(Decimal(1), ROUND_HALF_UP))


def some_usage(random: Random) -> Usage:
    read, written = random.choice((0, random.randrange(90_000))), random.choice((0, random.randrange(90_000)))
    fresh = random.choice((0, random.randrange(1000), random.randrange(600_000)))
    output = random.randrange(70_000)
    return Usage(
        input=fresh + read + written,
        cache_read=read,
        cache_write=written,
        cache_write_1h=random.choice((0, random.randrange(written + 1))),
        output=output,
        reasoning=random.choice((0, random.randrange(output + 1))),
        web_searches=random.choice((0, 0, 3)),
        service_tier=random.choice((None, "default", "flex", "priority")),
    )


@each_row("vendor", sorted(OURS))
def test_a_cost_equals_that_of_the_price_package(vendor: str) -> None:
    random = Random(vendor)
    models = list_models(vendor)
    for model in random.sample(models, min(len(models), 60)):
        for moment in MOMENTS:
            usage = some_usage(random)
            rates = model.at(utc_datetime(moment), usage.service_tier)
            assert cost_nano(rates, usage) == cost_of_package(vendor, model.id, usage, moment), (
                vendor,
                model.id,
                usage,
                moment,
            )


def find_price(kind: ProviderKind, model: str, endpoint: str | None = None) -> str | None:
    provider = ProviderConfig(name="up", kind=kind, endpoint=endpoint)
    known = Pricing({"up": provider})._find("up", model)
    return known.id if isinstance(known, PricedModel) else None


@each_row(
    ("kind", "model", "endpoint", "expected"),
    [
        ("anthropic", "claude-sonnet-4-5", "https://api.anthropic.com/v1", "claude-sonnet-4-5"),
        ("anthropic", "claude-sonnet-4-5-20250929", "https://api.anthropic.com/v1", "claude-sonnet-4-5"),
        ("anthropic", "claude-sonnet-4-5", "http://127.0.0.1:9/v1", "claude-sonnet-4-5"),
        ("openai", "gpt-5", "https://api.openai.com/v1", "gpt-5"),
        ("openai", "gpt-5-20250807", "https://api.openai.com/v1", "gpt-5"),
        ("openai", "GPT-5-2025-08-07", None, "gpt-5"),
        ("codex", "gpt-5-codex", "https://chatgpt.com/backend-api/codex", "gpt-5"),
        ("gemini", "gemini-2.5-pro", None, "gemini-2.5-pro"),
        ("kiro", "claude-sonnet-4.5", "https://runtime.us-east-1.kiro.dev", "claude-sonnet-4-5"),
        ("kiro", "CLAUDE_SONNET_4_5_20250929_V1_0", None, "claude-sonnet-4-5"),
        ("kiro", "auto", None, None),
        ("openai-compatible", "claude-sonnet-4-5", "http://10.0.0.1/v1", "claude-sonnet-4-5"),
        ("openai-compatible", "anthropic/claude-sonnet-4-5", "http://10.0.0.1/v1", "claude-sonnet-4-5"),
        ("openai-compatible", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", None, "claude-sonnet-4-5"),
        ("openai-compatible", "llama3.2", "http://127.0.0.1:11434/v1", None),
        ("openai-compatible", "gpt-oss-120b", "http://127.0.0.1:11434/v1", None),
        ("openai-compatible", "deepseek-chat", "http://127.0.0.1:11434/v1", None),
        ("openai-compatible", "deepseek-chat", "https://api.deepseek.com/v1", "deepseek-chat"),
        ("openai-compatible", "no-such-model", "https://api.openai.com/v1", None),
        ("echo", "claude-sonnet-4-5", None, None),
    ],
)
def test_a_model_is_found_by_address_kind_or_family(
    kind: ProviderKind, model: str, endpoint: str | None, expected: str | None
) -> None:
    assert find_price(kind, model, endpoint) == expected


def outcome(model: str, usage: Usage | None, provider: str = "up") -> Outcome:
    return Outcome(
        request_id="req_1", started_at=NOW, client_protocol="messages", provider=provider, model=model, usage=usage
    )


def test_without_usage_or_price_there_is_no_cost() -> None:
    pricing = Pricing({"up": ANTHROPIC})
    assert pricing.cost_nano(outcome("claude-sonnet-4-5", None)) is None
    assert pricing.cost_nano(outcome("never-heard-of", Usage(input=5))) is None
    assert pricing.cost_nano(outcome("claude-sonnet-4-5", Usage(input=5), provider="")) is None
    assert pricing.cost_nano(outcome("claude-sonnet-4-5", Usage(input=5), provider="gone")) is None
    assert pricing.cost_nano(outcome("claude-sonnet-4-5", Usage(input=1000, output=10))) == 3_150_000


def test_a_search_that_the_gateway_ran_is_not_paid_to_the_vendor() -> None:
    ran = ToolRun("web_search", "searxng", OK, 0.1)
    request = outcome("claude-sonnet-4-5", Usage(input=1000, output=10, web_searches=3))
    vendors_own = Pricing({"up": ANTHROPIC}).cost_nano(request)
    assert vendors_own == 3_150_000 + 3 * 10_000_000
    for ours, per_1000, expected in ((1, 0.0, 2 * 10_000_000), (3, 0.0, 0), (3, 5.0, 3 * 5_000_000)):
        pricing = Pricing({"up": ANTHROPIC}, (), per_1000)
        assert pricing.cost_nano(replace(request, tool_runs=(ran,) * ours)) == 3_150_000 + expected


def test_an_override_applies_to_a_model_or_to_a_provider_and_model() -> None:
    usage = Usage(input=1_000_000, cache_read=400_000, cache_write=100_000, output=1_000_000)
    overrides = (
        PriceOverride("up/claude-*", input=1.0, output=2.0),
        PriceOverride("mine-?", input=1.0, output=2.0, cache_read=0.1, cache_write=1.25),
        PriceOverride("*", input=0.0, output=0.0),
    )
    pricing = Pricing({"up": ANTHROPIC}, overrides)
    assert pricing.cost_nano(outcome("claude-sonnet-4-5", usage)) == 3_000_000_000
    assert pricing.cost_nano(outcome("mine-1", usage)) == (500_000 + 40_000 + 125_000 + 2_000_000) * 1000
    assert pricing.cost_nano(outcome("never-heard-of", usage)) == 0


def test_an_override_may_charge_more_for_what_is_written_for_an_hour() -> None:
    usage = Usage(input=1_000_000, cache_write=300_000, cache_write_1h=200_000)
    override = PriceOverride("*", input=1.0, output=2.0, cache_write=1.25)
    for price, expected in ((None, 700_000 + 375_000), (2.0, 700_000 + 125_000 + 400_000)):
        pricing = Pricing({"up": ANTHROPIC}, (replace(override, cache_write_1h=price),))
        assert pricing.cost_nano(outcome("mine", usage)) == expected * 1000


def test_a_price_that_depends_on_the_hour_changes_to_the_second() -> None:
    deepseek = ProviderConfig(name="up", kind="openai-compatible", endpoint="https://api.deepseek.com/v1")
    pricing = Pricing({"up": deepseek})
    request = outcome("deepseek-chat", Usage(input=1000))
    costs = []
    for moment in ("2026-11-16T16:29:58", "2026-11-16T16:29:59", "2026-11-16T16:30:00", "2026-11-16T16:29:59"):
        started_at = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
        costs.append(pricing.cost_nano(replace(request, started_at=started_at)))
    assert costs == [270_000, 270_000, 135_000, 270_000]


def test_more_cached_tokens_than_input_never_cost_less_than_zero() -> None:
    rates = Rates(input=10**6, cache_read=10**5, cache_write=10**6, output=10**6)
    assert cost_nano(rates, Usage(input=10, cache_read=50, cache_write=7, cache_write_1h=9)) == 5_000 + 7_000

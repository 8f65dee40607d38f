"""Read the series of a scrape with prometheus_client."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape_metrics(text: bytes) -> Scrape:
    found: Scrape = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            series = sample.name, frozenset(sample.labels.items())
            assert series not in found, f"{series} stands there twice"
            found[series] = sample.value
    return found


def scrape(url: str) -> Scrape:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return scrape_metrics(answer.read())


def value(scrape: Scrape, name: str, **labels: str) -> float:
    """The one series with these labels among others."""
    expected = labels.items()
    matching = [number for (found, given), number in scrape.items() if found == name and expected <= given]
    assert len(matching) == 1, f"{name} {labels}: {matching}"
    return matching[0]


def total(scrape: Scrape, name: str, **labels: str) -> float:
    """Of all series with these labels."""
    expected = labels.items()
    return sum(number for (found, given), number in scrape.items() if found == name and expected <= given)

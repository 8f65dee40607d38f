"""The page about clients names the versions that are tested."""

from clients import proof
from clients.refusals import ASKERS


def test_the_page_is_what_its_own_claims_and_our_pins_give() -> None:
    text = proof.PAGE.read_text()
    assert proof.page(proof.read(text), proof.read_reactions(text)) == text, (
        "docs/clients.md is stale: run `make clients-page`"
    )


def test_every_client_works_on_every_upstream() -> None:
    text = proof.PAGE.read_text()
    claimed = proof.read(text)
    assert len(proof.read_reactions(text)) == len(ASKERS) * len(proof.TROUBLES)
    assert {client for client, _ in claimed} == set(proof.CLIENTS)
    missing = [cell for cell, capabilities in claimed.items() if not capabilities]
    assert missing == []

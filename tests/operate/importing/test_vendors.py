"""Vendors are known by their names and addresses."""

from dragoman.operate.importing.vendors import cut_operation, find_kind, make_address


def test_an_address_identifies_the_vendor() -> None:
    assert cut_operation("https://llm.example/v1/messages/") == ("https://llm.example/v1", "messages")
    assert make_address("", "https://api.openai.com/v1") == {"kind": "openai"}
    assert make_address("anthropic", "https://claude.example") == {
        "kind": "anthropic",
        "endpoint": "https://claude.example/v1",
    }
    assert (find_kind("together_ai"), find_kind("groq"), find_kind("predibase")) == ("together", "groq", "")

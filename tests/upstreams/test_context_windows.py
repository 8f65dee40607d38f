"""Context windows as servers report them: vLLM and vendors in the list, Ollama, LM Studio and llama.cpp elsewhere."""

import asyncio

import msgspec
import pytest

from dragoman.config.settings import ProviderConfig, ServerName
from dragoman.upstreams import Surroundings
from dragoman.upstreams.models import CachedCatalogue, parse_list
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.section import make_provider
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from outgoing import open_http


def page(value: object) -> Answer:
    return Answer(msgspec.json.encode(value), content_type="application/json")


def models(owner: str, *ids: str, **fields: object) -> Answer:
    data = [{"id": id, "object": "model", "created": 1, "owned_by": owner, **fields} for id in ids]
    return page({"object": "list", "data": data})


def read_windows(
    fake: FakeUpstream, *, quirks: tuple[ServerName, ...] = (), context_window: int | None = None
) -> dict[str, int | None]:
    """Return the windows of the models that a provider with this server has."""
    config = ProviderConfig(
        name="up",
        kind="openai-compatible",
        endpoint=fake.url,
        protocols=("chat",),
        quirks=quirks,
        context_window=context_window,
    )

    async def read() -> dict[str, int | None]:
        async with open_http() as http:
            provider: Provider = make_provider(config, Surroundings(http.send, {}))
            listed = await CachedCatalogue(provider, lambda: 0.0).wait_for_list()
        return {model.id: model.max_input for model in listed}

    return asyncio.run(read())


@pytest.mark.parametrize(
    "fields",
    [
        {"max_model_len": 32768},  # vLLM
        {"context_length": 32768},  # OpenRouter
        {"context_window": 32768},  # Groq
        {"max_context_length": 32768},  # Mistral
        {"meta": {"n_ctx": 32768, "n_ctx_train": 131072}},  # llama.cpp, newer versions
        {"meta": {"n_ctx_train": 32768}},  # llama.cpp, if nothing better is known
    ],
)
def test_a_window_in_the_list_is_read(fields: dict[str, object]) -> None:
    with FakeUpstream(pages={"/v1/models": models("someone", "m", **fields)}) as fake:
        assert read_windows(fake) == {"m": 32768}


@pytest.mark.parametrize("odd", [0, -1, True, "32768", 1.5, None, [1], {}])
def test_a_window_that_is_no_number_of_tokens_is_not_taken_for_one_and_the_list_is_read(odd: object) -> None:
    body = models("someone", "m", context_length=odd, meta=odd).body
    [model] = parse_list(body)
    assert (model.id, model.max_input, model.trained_window) == ("m", None, None)


def show(sizes: dict[str, tuple[int, str]]) -> FakeUpstream:
    """Return an Ollama with these models: the most tokens that each can have, and its parameters."""

    def answer(request: ReceivedRequest) -> Answer | None:
        if request.path != "/api/show":
            return None
        most, parameters = sizes[request.json["model"]]
        info = {"general.architecture": "qwen3", "qwen3.context_length": most, "qwen3.vision.context_length": 7}
        return page({"parameters": parameters, "model_info": info})

    running = {"models": [{"name": "loaded:1b", "model": "loaded:1b", "context_length": 16384}]}
    pages = {"/v1/models": models("library", *sizes), "/api/ps": page(running)}
    return FakeUpstream(intercept=answer, pages=pages)


def test_ollama_reports_what_a_model_runs_with_else_what_it_is_set_to_else_its_maximum() -> None:
    sizes = {
        "loaded:1b": (131072, "num_ctx                        8192"),
        "set:1b": (131072, 'stop                           "<|end|>"\nnum_ctx                        8192'),
        "plain:1b": (40960, ""),
    }
    with show(sizes) as fake:
        assert read_windows(fake) == {"loaded:1b": 16384, "set:1b": 8192, "plain:1b": 40960}
    with show(sizes) as fake:
        # Ollama runs a model with less than its maximum by default: the setting is more reliable.
        assert read_windows(fake, context_window=4096) == {"loaded:1b": 16384, "set:1b": 8192, "plain:1b": 4096}


def test_ollama_is_recognised_by_its_quirks_where_no_model_is_from_its_library() -> None:
    fake = show({"me/mine:1b": (40960, "")})
    fake.pages["/v1/models"] = models("me", "me/mine:1b")
    with fake:
        assert read_windows(fake, quirks=("ollama",)) == {"me/mine:1b": 40960}
        assert fake.calls == []


def test_lm_studio_reports_the_loaded_window_else_the_maximum() -> None:
    described = [
        {"id": "loaded", "state": "loaded", "max_context_length": 131072, "loaded_context_length": 4096},
        {"id": "other", "state": "not-loaded", "max_context_length": 32768},
    ]
    pages = {"/v1/models": models("organization_owner", "loaded", "other"), "/api/v0/models": page({"data": described})}
    with FakeUpstream(pages=pages) as fake:
        assert read_windows(fake) == {"loaded": 4096, "other": 32768}


def test_llama_cpp_reports_its_window_in_its_properties() -> None:
    listed = models("llamacpp", "m.gguf", meta={"n_ctx_train": 131072})
    props = page({"default_generation_settings": {"n_ctx": 8192}, "total_slots": 1})
    with FakeUpstream(pages={"/v1/models": listed, "/props": props}) as fake:
        assert read_windows(fake) == {"m.gguf": 8192}


@pytest.mark.parametrize("owner", ["library", "organization_owner", "llamacpp", "someone"])
def test_a_server_that_reports_nothing_gets_the_configured_window(owner: str) -> None:
    with FakeUpstream(pages={"/v1/models": models(owner, "m")}) as fake:
        assert read_windows(fake, context_window=131072) == {"m": 131072}
        assert read_windows(fake) == {"m": None}


def test_the_table_of_known_models_comes_before_the_configured_window() -> None:
    with FakeUpstream(pages={"/v1/models": models("someone", "claude-sonnet-4-5", "m")}) as fake:
        assert read_windows(fake, context_window=4096) == {"claude-sonnet-4-5": 200_000, "m": 4096}

"""Which kind of provider a vendor of another gateway is here."""

import re

from dragoman.config.presets import load_presets, normalise_endpoint
from dragoman.config.urls import split_url

# Names that other gateways give vendors, where they are not ours.
NAMES = {
    "azure": "azure-openai",
    "azure_ai": "azure-openai",
    "claude": "anthropic",
    "cohere_chat": "cohere",
    "dashscope": "qwen",
    "fireworks_ai": "fireworks",
    "github": "github-models",
    "github_copilot": "copilot",
    "google": "gemini",
    "hosted_vllm": "vllm",
    "lm_studio": "lmstudio",
    "nvidia_nim": "nvidia",
    "ollama_chat": "ollama",
    "sgl": "openai-compatible",
    "openai_like": "openai-compatible",
    "custom_openai": "openai-compatible",
    "text-completion-openai": "openai",
    "together_ai": "together",
    "vercel_ai_gateway": "vercel",
}
OWN_KINDS = frozenset({"openai", "anthropic", "gemini", "copilot", "openai-compatible"})
OWN_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
}
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
AZURE_HOST = re.compile(r"([A-Za-z0-9-]+)\.openai\.azure\.com")
# What a request appends to the address, and the protocol that this tells.
OPERATIONS = {"/chat/completions": "chat", "/completions": "chat", "/responses": "responses", "/messages": "messages"}


def find_kind(vendor: str) -> str:
    """Return our kind or preset of a vendor; empty if it is none that we know."""
    name = NAMES.get(vendor.lower(), vendor.lower())
    return name if name in OWN_KINDS or name in load_presets() else ""


def find_kind_of_address(endpoint: str) -> str:
    """Return the kind or preset that has this address; openai-compatible if none has."""
    host = split_url(endpoint).hostname or ""
    if host in OWN_HOSTS:
        return OWN_HOSTS[host]
    address = endpoint.rstrip("/").removesuffix("/v1").replace("//localhost:", "//127.0.0.1:")
    for name, preset in load_presets().items():
        if preset.endpoint.rstrip("/").removesuffix("/v1") == address:
            return name
    return "openai-compatible"


def cut_operation(url: str) -> tuple[str, str]:
    """Return an address up to and including the version, and the protocol of the operation that it ended with."""
    address = url.strip().rstrip("/").removesuffix("/models")
    for operation, protocol in OPERATIONS.items():
        if address.endswith(operation):
            return address.removesuffix(operation), protocol
    return address, ""


def make_address(kind: str, endpoint: str, protocol: str = "") -> dict[str, object]:
    """Return the settings for an address: those of its preset, if it is the usual one of this kind."""
    azure = AZURE_HOST.fullmatch(split_url(endpoint).hostname or "")
    if azure is not None:
        return {"kind": "azure-openai", "resource": azure[1]}
    found = find_kind_of_address(endpoint)
    if found != "openai-compatible" and (kind in ("openai-compatible", found) or not kind):
        return {"kind": found}
    section: dict[str, object] = {"kind": kind if kind in OWN_KINDS else "openai-compatible"}
    if section["kind"] == "openai":
        section["kind"] = "openai-compatible"  # `openai` is the vendor itself
    section["endpoint"] = normalise_endpoint(endpoint, str(section["kind"]))
    if protocol and section["kind"] == "openai-compatible":
        section["protocol"] = protocol
    return section


def make_vertex(project: str, location: str, credentials: str = "adc") -> dict[str, object]:
    """Return the settings of Google's models in a project of Vertex AI."""
    host = "aiplatform.googleapis.com" if location == "global" else f"{location}-aiplatform.googleapis.com"
    endpoint = f"https://{host}/v1/projects/{project}/locations/{location}/publishers/google"
    return {"kind": "gemini", "endpoint": endpoint, "credentials": credentials}


def name_key(kind: str, provider: str) -> str:
    """Return the variable that usually holds the key of this kind."""
    preset = load_presets().get(kind)
    usual = preset.keys[0] if preset is not None and preset.keys else KEYS.get(kind)
    return usual or f"{provider}_API_KEY"

"""The gateways of the benchmark: the command and the configuration of each."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.cases import CASES, CROWD_CASES, UPSTREAMS, Case
from bench.tools import LITELLM, OTHER_VENV, python_of_commit

KEY = "sk-fake-client-key-for-the-benchmark-only"
UPSTREAM_KEY = "sk-fake-upstream"
OTHER_PYTHON = "other-python"  # dragoman on the interpreter of --python
BESIDE = "beside"  # dragoman of the commit of --beside
PAIRED = "paired"  # the present tree, in turns with that commit
PARTLY = ("bench.partly",)  # dragoman with some of its observers


@dataclass(frozen=True)
class Site:
    """Where a gateway is to listen, its upstream, and where it may keep files."""

    port: int
    upstream: int
    directory: Path


@dataclass(frozen=True)
class Gateway:
    """How one gateway is started, and which requests it takes."""

    name: str
    health: str
    prepare: Callable[[Site], list[str]]
    takes: Callable[[Case], bool]
    patience_s: float = 20.0
    isolated: bool = False  # imports nothing but what its own environment has
    heavy: bool = False  # costs so much that the load generator's speed does not matter, and one round must do

    def environ(self, site: Site) -> dict[str, str]:
        """As it is here, less what could send a gateway anywhere but to the fake upstream."""
        names = ("PATH", "LANG", *(() if self.isolated else ("VIRTUAL_ENV", "PYTHONPATH")))
        kept = {name: os.environ[name] for name in names if name in os.environ}
        own = {
            "HOME": str(site.directory),
            "XDG_DATA_HOME": str(site.directory),
            "DRAGOMAN_API_KEY": KEY,
            "KIRO_API_KEY": "ksk_fake-upstream",
            "LITELLM_MASTER_KEY": KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the list it ships, not a download
            "LITELLM_LOG": "ERROR",
        }
        return kept | own


NGINX = """
{user}
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 1000000;
    upstream fake {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location = /health {{ return 200 "ok"; }}
        location / {{
            proxy_pass http://fake;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def _prepare_nginx(site: Site) -> list[str]:
    config = site.directory / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(NGINX.format(user=user, directory=site.directory, upstream=site.upstream, port=site.port))
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    return [nginx, "-e", str(site.directory / "start.log"), "-p", str(site.directory), "-c", str(config)]


def provider_section(protocol: str, root: str) -> str:
    """The provider of the fake upstream's that speaks this protocol."""
    if protocol == "kiro":
        hosts = [f'{name} = "{root}"' for name in ("endpoint", "control_endpoint", "auth_endpoint")]
        own = ['kind = "kiro"', 'credentials = "env:KIRO_API_KEY"', *hosts]
    elif protocol == "gemini":
        own = ['kind = "gemini"', f'api_key = "{UPSTREAM_KEY}"', f'endpoint = "{root}/v1beta"', "list_models = false"]
    elif protocol == "messages":
        own = ['kind = "anthropic"', f'api_key = "{UPSTREAM_KEY}"', f'endpoint = "{root}/v1"']
    else:
        own = ['kind = "openai-compatible"', f'protocol = "{protocol}"', f'api_key = "{UPSTREAM_KEY}"']
        own.append(f'endpoint = "{root}/v1"')
    return "\n".join([f"[providers.{protocol}]", *own])


def _prepare_dragoman(
    site: Site, *module: str, python: str = sys.executable, upstreams: tuple[str, ...] = UPSTREAMS
) -> list[str]:
    config = site.directory / "dragoman.toml"
    root = f"http://127.0.0.1:{site.upstream}"
    sections = [provider_section(protocol, root) for protocol in upstreams]
    sections.append(f'[store]\nurl = "sqlite:///{site.directory}/dragoman.db"')
    config.write_text("\n\n".join(sections) + "\n")
    return [
        python,
        "-m",
        *(module or ("dragoman",)),
        "serve",
        "--config",
        str(config),
        "--port",
        str(site.port),
    ]


def _prepare_on_other_python(site: Site) -> list[str]:
    return _prepare_dragoman(site, python=str(OTHER_VENV / "bin" / "python"))


def dragoman_of(commit: str, upstreams: tuple[str, ...]) -> Gateway:
    """Return dragoman of another commit, which may know fewer providers than the present tree."""
    python = str(python_of_commit(commit))
    return Gateway(
        BESIDE,
        "/health",
        lambda site: _prepare_dragoman(site, python=python, upstreams=upstreams),
        lambda case: case.upstream in upstreams,
        isolated=True,
    )


LITELLM_MAKERS = {"chat": "openai", "messages": "anthropic"}


def _litellm_takes(case: Case) -> bool:
    """Clients of Responses and Gemini reach only upstreams of their makers, and there are none here."""
    return case.client not in ("responses", "gemini") and case.upstream in LITELLM_MAKERS


def _prepare_litellm(site: Site) -> list[str]:
    config = site.directory / "litellm.yaml"
    base = {"chat": "/v1", "messages": ""}
    lines = ["model_list:"]
    for case in dict.fromkeys(case.baseline for case in (*CASES, *CROWD_CASES)):
        upstream = case.upstream
        if upstream not in LITELLM_MAKERS:
            continue
        lines += [
            f"  - model_name: {case.model}",
            "    litellm_params:",
            f"      model: {LITELLM_MAKERS[upstream]}/bench-{case.mode}",
            f"      api_base: http://127.0.0.1:{site.upstream}{base[upstream]}",
            f"      api_key: {UPSTREAM_KEY}",
        ]
    # Without this, LiteLLM asks an OpenAI upstream over the Responses protocol on behalf of a Messages client.
    lines += ["litellm_settings:", "  use_chat_completions_url_for_anthropic_messages: true"]
    config.write_text("\n".join(lines) + "\n")
    place = ["--host", "127.0.0.1", "--port", str(site.port), "--num_workers", "1", "--telemetry", "False"]
    return [str(LITELLM), "--config", str(config), *place]


GATEWAYS = {
    gateway.name: gateway
    for gateway in (
        Gateway("nginx", "/health", _prepare_nginx, lambda case: not case.translated),
        Gateway("dragoman", "/health", _prepare_dragoman, lambda case: True),
        Gateway(OTHER_PYTHON, "/health", _prepare_on_other_python, lambda case: True),
        Gateway("unobserved", "/health", lambda site: _prepare_dragoman(site, *PARTLY, "none"), lambda case: True),
        Gateway("logged", "/health", lambda site: _prepare_dragoman(site, *PARTLY, "log"), lambda case: True),
        Gateway("litellm", "/health/liveliness", _prepare_litellm, _litellm_takes, 120.0, heavy=True),
    )
}


def headers(protocol: str) -> dict[str, str]:
    """What a client of the protocol sends beside its body."""
    plain = {"content-type": "application/json", "accept": "*/*", "user-agent": "bench"}
    if protocol == "messages":
        return plain | {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    if protocol == "gemini":
        return plain | {"x-goog-api-key": KEY}
    return plain | {"authorization": f"Bearer {KEY}"}

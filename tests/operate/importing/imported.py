"""Configurations of other gateways, and what became of them."""

import json
import tomllib
from pathlib import Path

import msgspec

from dragoman.operate.importing.plan import ImportPlan, plan_import
from wire_json import JsonObject

SECRET = "fake-secret-4711"  # in every value of these files that is a secret
FIXTURES = Path(__file__).parents[2] / "fixtures" / "other_gateways"
FILES = {
    "LiteLLM": "litellm.yaml",
    "claude-code-router": "claude-code-router.json",
    "CLIProxyAPI": "cli-proxy-api.yaml",
    "Bifrost": "bifrost.json",
    "kiro-gateway": "kiro-gateway.env",
}


def import_fixture(gateway: str) -> ImportPlan:
    return plan_import(FIXTURES / FILES[gateway], Path("dragoman.toml"))


def settings_of(plan: ImportPlan) -> JsonObject:
    return msgspec.json.decode(json.dumps(tomllib.loads(plan.text)), type=JsonObject)


def reasons_of(plan: ImportPlan) -> dict[str, str]:
    return {field.path: field.reason for field in plan.fields if not field.setting}

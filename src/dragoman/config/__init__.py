"""Configuration: dragoman.toml, environment variables and flags, read and validated into one frozen Config."""

from dragoman.config.discovery import LocalServer, local_ports
from dragoman.config.environment import parse_dotenv, read_environment
from dragoman.config.load import find_file, load
from dragoman.config.presets import normalise_endpoint
from dragoman.config.problems import ConfigError, Problem
from dragoman.config.secret import SHORTEST_OPEN_KEY, Secret, SecretSource, is_placeholder, resolve_secret
from dragoman.config.settings import (
    CodexProviderConfig,
    Config,
    CopilotProviderConfig,
    Debug,
    Effort,
    Fetch,
    KiroProviderConfig,
    ModelRoute,
    PriceOverride,
    ProviderConfig,
    Retry,
    Server,
    StoreSettings,
)

__all__ = [
    "SHORTEST_OPEN_KEY",
    "CodexProviderConfig",
    "Config",
    "ConfigError",
    "CopilotProviderConfig",
    "Debug",
    "Effort",
    "Fetch",
    "KiroProviderConfig",
    "LocalServer",
    "ModelRoute",
    "PriceOverride",
    "Problem",
    "ProviderConfig",
    "Retry",
    "Secret",
    "SecretSource",
    "Server",
    "StoreSettings",
    "find_file",
    "is_placeholder",
    "load",
    "local_ports",
    "normalise_endpoint",
    "parse_dotenv",
    "read_environment",
    "resolve_secret",
]

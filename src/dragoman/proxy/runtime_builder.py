"""Build what requests are answered with from a configuration, again after each edit of it."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from dragoman.config.problems import ConfigError
from dragoman.config.proxies import read_proxies
from dragoman.config.secret import find_unreadable_secrets
from dragoman.config.settings import Config, Tools
from dragoman.proxy.ports import PriceList
from dragoman.proxy.runtime import Runtime
from dragoman.server_tools.backends import CurrentBackends, Network, ToolPlan, UpstreamTools, plan_tools
from dragoman.server_tools.guarded_fetch import GuardedFetcher, LinkedMediaFetcher
from dragoman.tenancy.policies import Policies
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams import Surroundings
from dragoman.upstreams.kept_rules import KeptRules
from dragoman.upstreams.models import CachedCatalogue
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.section import USER_AGENT, make_provider

log = logging.getLogger(__name__)


class RuntimeBuilder:
    """Builds runtimes; providers and tools whose settings did not change are used again."""

    def __init__(self, around: Surroundings, rules: KeptRules, policies: Policies) -> None:
        self._around = around
        self._proxies = read_proxies(around.environ)
        self._rules = rules
        self._policies = policies
        self._tools = CurrentBackends()

    def build(self, config: Config, prices: PriceList, old: Runtime | None = None) -> Runtime:
        """Return the runtime of a configuration that replaces the one of `old`; raises ConfigError."""
        providers, catalogues = {}, {}
        clock = asyncio.get_running_loop().time
        for name, section in config.providers.items():
            if old is not None and old.config.providers.get(name) == section:
                providers[name], catalogues[name] = old.providers[name], old.catalogues[name]
                continue
            before = None if old is None else old.providers.get(name)
            self._check_secrets(section, starts=old is None)
            providers[name] = make_provider(section, self._around, before)
            catalogues[name] = CachedCatalogue(providers[name], clock)
        fetcher = None
        if config.fetch.enabled:
            guarded = GuardedFetcher(self._around.send, proxies=self._proxies)
            fetcher = LinkedMediaFetcher(guarded, config.fetch, USER_AGENT)
        self._rules.adopt(config.providers)
        return Runtime(
            config=config,
            providers=providers,
            catalogues=catalogues,
            protocols=PROTOCOLS,
            fetcher=fetcher,
            budgets=msgspec.structs.asdict(config.effort),
            learned_quirks=self._rules,
            tool_plans=self._plan_tools(config, providers, None if old is None else old.config.tools),
            policies=self._policies,
            prices=prices,
        )

    async def close(self) -> None:
        await self._tools.close()

    def _plan_tools(self, config: Config, providers: Mapping[str, Provider], old: Tools | None) -> dict[str, ToolPlan]:
        if config.tools != old:
            for section in (config.tools.web_search, config.tools.web_fetch):
                self._check_secrets(section, starts=old is None)
        network = Network(self._around.send, self._proxies, self._around.environ, USER_AGENT)
        backends = self._tools.find(config.tools, network)
        planned = {
            name: plan_tools(config.tools, backends, _list_upstream_tools(provider))
            for name, provider in providers.items()
        }
        return {name: plan for name, plan in planned.items() if plan is not None}

    def _check_secrets(self, section: Struct, *, starts: bool) -> None:
        """Log secrets that cannot be read at the start; raises ConfigError for a changed configuration."""
        problems = find_unreadable_secrets(section, self._around.environ)
        if problems and not starts:
            raise ConfigError(problems)
        for problem in problems:
            log.warning("%s", problem)


def _list_upstream_tools(provider: Provider) -> UpstreamTools:
    requests = provider.requests
    return UpstreamTools(requests.hosted_tools, provider.account.search, mixes=requests.mixes_tools is None)

"""The paths that ask a model, count a request's tokens or pass it on: each begins its story."""

from collections.abc import Awaitable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from dragoman.proxy.call import Compacts
from dragoman.proxy.run_headers import find_worker
from dragoman.proxy.serve import Services, Story, count, relay, serve
from dragoman.proxy.steps.find_run import find_lost_elsewhere
from dragoman.server.models import ModelsApi
from dragoman.server.routes import AccessRole, Cost, Handler, HttpRoute, RoutedRequest, make_call, make_record
from dragoman.tenancy.policies import Policies
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS, RelayedPath

if TYPE_CHECKING:
    from dragoman.server.worker_group import WorkerGroup


class ModelRequests:
    """Begins the stories of model requests, here or on the worker that has a request's run."""

    def __init__(self, services: Services, policies: Policies) -> None:
        self._services = services
        self._policies = policies
        self._gateway = services.gateway
        self._group: WorkerGroup | None = None

    def join_group(self, group: "WorkerGroup") -> None:
        """Pass requests on to the workers that have their runs."""
        self._group = group
        self._services.parked.join_group(group)

    def routes(self) -> Iterator[HttpRoute]:
        models = ModelsApi(self._gateway, self._policies)
        for name, protocol in self._gateway.runtime.protocols.items():
            client = protocol.client
            for path in () if client is None else client.paths:
                yield _post(path, partial(self._serve, name, None), serve, Cost.COSTS)
            for path in () if client is None or client.counting is None else client.counting.paths:
                yield _post(path, partial(self._count, name), count, Cost.FREE)
            for path in () if protocol.models is None else protocol.models.paths:
                yield HttpRoute("GET", path, AccessRole.CLIENT, partial(models.list_models, protocol.models))
                yield HttpRoute("GET", f"{path}/*", AccessRole.CLIENT, partial(models.show_model, protocol.models))
        yield HttpRoute("GET", "/models", AccessRole.CLIENT, partial(models.list_models, None))
        yield HttpRoute("GET", "/models/*", AccessRole.CLIENT, partial(models.show_model, None))
        for relayed in RELAYED_PATHS.values():
            yield _post(f"/{relayed.name}", partial(self._relay, relayed), relay, Cost.COSTS)

    def compacting_route(self, path: str, protocol: str) -> HttpRoute:
        """Return the route of requests to compact a context."""
        return _post(path, partial(self._serve, protocol, Compacts.BY_PATH), serve, Cost.COSTS)

    def _serve(self, protocol: str, compacts: Compacts | None, request: RoutedRequest) -> Awaitable[None]:
        if self._group is not None:
            return self._serve_in_group(self._group, protocol, compacts, request)
        return serve(self._services, make_call(self._gateway.runtime, protocol, request, compacts), request.sink)

    async def _serve_in_group(
        self, group: "WorkerGroup", protocol: str, compacts: Compacts | None, request: RoutedRequest
    ) -> None:
        """Answer a request, here or on the worker that has its run or its idempotency key."""
        http, tenant = request.http, request.tenant
        worker = find_worker(http, tenant, group.count)
        if worker is None and not request.is_forwarded:
            worker = await find_lost_elsewhere(self._services.parked, group, http, tenant)
        if worker is None or worker == group.number:
            call = make_call(self._gateway.runtime, protocol, request, compacts)
            await serve(self._services, call, request.sink)
        else:
            await group.forward(request, worker)

    def _count(self, protocol: str, request: RoutedRequest) -> Awaitable[None]:
        return count(self._services, make_call(self._gateway.runtime, protocol, request), request.sink)

    def _relay(self, path: RelayedPath, request: RoutedRequest) -> Awaitable[None]:
        from dragoman.proxy.relay import RelayedCall

        call = RelayedCall(path, request.http, request, make_record(path.name, request))
        policies = self._gateway.runtime.policies
        if policies is not None:
            call.apply_policy(policies.find(request.key))
        return relay(self._services, call, request.sink)


def _post(path: str, handler: Handler, story: Story, cost: Cost) -> HttpRoute:
    return HttpRoute("POST", path, AccessRole.CLIENT, handler, story=story, cost=cost)

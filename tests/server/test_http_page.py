"""docs/http.md lists every path that is served except those of the admin API, and the status of every failure."""

import re
from pathlib import Path

from dragoman.server.api.wire import PREFIX
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.protocols import PROTOCOLS
from gateway import running

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
COLUMNS = {"chat": 0, "responses": 1, "messages": 2, "gemini": 3}
OTHER_VERSION = re.compile("^/v1(alpha|beta1)(?=/)")


def test_the_page_lists_every_path_that_is_served(tmp_path: Path) -> None:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path, stored=["someone"]) as gateway:
        routes = [route for route in gateway.app.site.routes.routes if not route.refuses]
    routes = [route for route in routes if not route.path.startswith(PREFIX)]  # tests/server/api/test_openapi.py
    # Google's other versions are those of /v1beta over again.
    served = {(route.method, OTHER_VERSION.sub("/v1beta", route.path.replace("/*", "/{id}"))) for route in routes}
    found = re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/\S*?)`", PAGE)
    listed = {(method, re.sub("^/v1(?=/)", "", path)) for method, path in found}
    assert served == listed


def test_the_page_has_the_status_of_every_failure() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert sorted(outcome for outcome, *_ in rows) == sorted(kind.value for kind in Kind)
    for outcome, *statuses in rows:
        for name, column in COLUMNS.items():
            client = PROTOCOLS[name].client
            assert client is not None
            assert client.render_error(Failure(Kind(outcome), "x"), "req_1").status == int(statuses[column]), (
                outcome,
                name,
            )

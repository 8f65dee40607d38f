"""Every route that asks a model passes the steps that docs/architecture.md lists, and what costs something `admit`."""

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import dragoman.proxy.serve
from dragoman.proxy.serve import Story, run_in_background, serve_without_model
from dragoman.server.routes import AccessRole, Cost, HttpRoute
from gateway import running

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MARK = "<!-- stories: written by tests/server/test_stories.py with DRAGOMAN_WRITE_PAGES=1 -->\n"
ANSWERING = ("answer", "answer_relayed", "compact")  # what an upstream may be paid for
QUEUED = "a queued background response"
WITHOUT_MODEL = "`GET /responses`, a request with `generate: false`"
OTHER_VERSIONS = ("/v1alpha/", "/v1beta1/")  # of Google's paths, which are those of /v1beta over again


def list_step_names() -> set[str]:
    """Return the names of all public functions and methods of the files in proxy/steps, and of the last steps."""
    directory = Path(dragoman.proxy.serve.__file__).parent / "steps"
    trees = [ast.parse(path.read_text()) for path in sorted(directory.glob("*.py"))]
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, defined)}
    return {name for name in names if not name.startswith("_")} | {*ANSWERING, "count_tokens"}


def list_steps(story: Story) -> list[str]:
    """Return the steps that a story calls, in the order of its source."""
    calls = [
        node for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(story)))) if isinstance(node, ast.Call)
    ]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    named = (_name_of(call.func) for call in calls)
    known = list_step_names()
    return list(dict.fromkeys(name for name in named if name in known))


def _name_of(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def list_routes(directory: Path) -> list[HttpRoute]:
    with running('[providers.echo]\nkind = "echo"\n', directory, stored=["someone"]) as gateway:
        return list(gateway.app.site.routes.routes)


def render_table(routes: list[HttpRoute]) -> str:
    places: dict[Story, list[str]] = {}
    costs: dict[Story, str] = {}
    for route in routes:
        if route.story is not None and not route.path.startswith(OTHER_VERSIONS):
            places.setdefault(route.story, []).append(f"`{route.method} {route.path}`")
            costs[route.story] = "" if route.cost is None else route.cost.value
    places[serve_without_model], costs[serve_without_model] = [WITHOUT_MODEL], Cost.FREE.value
    places[run_in_background], costs[run_in_background] = [QUEUED], Cost.COSTS.value
    return "".join(_render_rows(places, costs))


def _render_rows(places: dict[Story, list[str]], costs: dict[Story, str]) -> Iterator[str]:
    yield "| story | cost | steps, in order | for |\n|---|---|---|---|\n"
    for story, where in places.items():
        steps = ", ".join(f"`{step}`" for step in list_steps(story))
        yield f"| `{story.__name__}` | {costs[story]} | {steps} | {', '.join(where)} |\n"


def test_the_page_lists_the_steps_that_every_route_passes(tmp_path: Path) -> None:
    table = render_table(list_routes(tmp_path))
    print(table)
    before, _, rest = PAGE.read_text().partition(MARK)
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(before + MARK + table + "\n" + rest[rest.index("\n\n") + 2 :])
    assert PAGE.read_text().partition(MARK)[2].startswith(table)


def test_a_route_that_costs_something_is_admitted_before_it_is_answered(tmp_path: Path) -> None:
    stories = {route.story for route in list_routes(tmp_path) if route.cost is Cost.COSTS}
    assert None not in stories
    for story in (*stories, run_in_background):
        assert story is not None
        steps = list_steps(story)
        assert "admit" in steps, story
        assert all(steps.index("admit") < steps.index(last) for last in ANSWERING if last in steps), story


def test_every_post_of_a_client_says_whether_it_costs_something(tmp_path: Path) -> None:
    posts = [route for route in list_routes(tmp_path) if route.role is AccessRole.CLIENT and route.method == "POST"]
    assert posts
    assert [route.path for route in posts if route.cost is None] == []
    assert [route.path for route in posts if route.cost is Cost.FREE and "admit" in _steps_of(route)] == []
    assert not {"admit", *ANSWERING} & set(list_steps(serve_without_model))


def _steps_of(route: HttpRoute) -> list[str]:
    return [] if route.story is None else list_steps(route.story)

"""Calls come back as the client has declared its tools, whichever kind of call the upstream makes."""

from dragoman.translate.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Stop, UsageReported
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.usage import Usage
from dragoman.translate.passes.adapt_tools import ToolId, ToolMap
from dragoman.translate.stages.restore_tools import RestoreTools
from laws import assert_any_recut_agrees, run
from replies import START, join_deltas, split_delta
from tables import each_row

TOOLS = ToolMap(kinds={(None, "patch"): True, (None, "f"): False, ("mcp", "patch"): False})
RENAMED = ToolMap({"patch_1a2b": ToolId("pätch", custom=True), "f_1a2b": ToolId("f")})
END = Ended(Stop.TOOL)


def reply(call: CallBlock, *pieces: str, end: Ended = END) -> list[Event]:
    return [START, Opened(0, call), *(Delta(0, piece) for piece in pieces), Closed(0), UsageReported(Usage()), end]


def restore(call: CallBlock, *pieces: str, tools: ToolMap = TOOLS, end: Ended = END) -> list[Event]:
    return join_deltas(run(RestoreTools(tools), reply(call, *pieces, end=end)))


def test_a_custom_tool_called_as_a_function_is_a_custom_call_with_its_raw_text() -> None:
    out = restore(CallBlock("c", "patch"), '{"in', 'put": "*** Begin\\n+\\u00e9', ' \\"x\\""}')
    assert out == reply(CallBlock("c", "patch", custom=True), '*** Begin\n+é "x"')


def test_its_text_streams_before_the_call_is_whole() -> None:
    stage = RestoreTools(TOOLS)
    stage.feed(START)
    stage.feed(Opened(0, CallBlock("c", "patch")))
    assert [*stage.feed(Delta(0, '{"input":"abc'))] == [Delta(0, "abc")]
    assert [*stage.feed(Delta(0, "def"))] == [Delta(0, "def")]


@each_row(
    ("arguments", "text"),
    [
        *(('{"input":"raw"}', "raw"), ('{"patch":"raw"}', "raw"), ('{"why":"x","input":"raw"}', "raw")),
        *((raw, raw) for raw in ("*** Begin Patch", '"quoted"', '{"input":5}', "[" * 5000)),
        *(("{}", ""), ("", "")),
    ],
)
def test_whatever_shape_the_arguments_have_their_text_is_found(arguments: str, text: str) -> None:
    out = restore(CallBlock("c", "patch"), arguments)
    assert "".join(event.text for event in out if isinstance(event, Delta)) == text
    assert out[1] == Opened(0, CallBlock("c", "patch", custom=True))


def test_a_function_called_as_a_custom_tool_is_a_function_call() -> None:
    assert restore(CallBlock("c", "f", custom=True), '{"a":1}') == reply(CallBlock("c", "f"), '{"a":1}')


def test_calls_of_the_declared_kind_and_of_unknown_tools_pass_untouched() -> None:
    for call in (
        CallBlock("c", "patch", custom=True),
        CallBlock("c", "f"),
        CallBlock("c", "unknown"),
        CallBlock("c", "unknown", custom=True),
        CallBlock("c", "patch", namespace="mcp"),
    ):
        assert restore(call, '{"input":"x"}') == reply(call, '{"input":"x"}')


def test_a_renamed_tool_gets_its_name_and_kind_back() -> None:
    out = restore(CallBlock("c", "patch_1a2b"), '{"input":"x"}', tools=RENAMED)
    assert out == reply(CallBlock("c", "pätch", custom=True), "x")
    out = restore(CallBlock("c", "patch_1a2b", custom=True), "x", tools=RENAMED)
    assert out == reply(CallBlock("c", "pätch", custom=True), "x")
    out = restore(CallBlock("c", "f_1a2b", custom=True), "{}", tools=RENAMED)
    assert out == reply(CallBlock("c", "f"), "{}")


def test_an_input_that_breaks_off_is_a_failure_unless_a_limit_cut_it() -> None:
    last = restore(CallBlock("c", "patch"), '{"input":"*** Beg')[-1]
    assert isinstance(last, Failed)
    assert last.failure.kind is Kind.CORRUPT
    assert "'patch'" in last.failure.message
    cut = Ended(Stop.LENGTH)
    out = restore(CallBlock("c", "patch"), '{"input":"*** Beg', end=cut)
    assert out == reply(CallBlock("c", "patch", custom=True), "*** Beg", end=cut)


def test_any_recut_of_the_deltas_agrees() -> None:
    for call, arguments in (
        (CallBlock("c", "patch"), '{"input": "*** Begin\\n\\ud83d\\ude42"}'),
        (CallBlock("c", "patch"), '{"other": "x"}'),
        (CallBlock("c", "patch"), '{"input": "cut'),
        (CallBlock("c", "f", custom=True), '{"a":1}'),
    ):
        assert_any_recut_agrees(lambda: RestoreTools(TOOLS), reply(call, arguments), split_delta, join_deltas)

"""`python -m bench.survival`: print memory and stalls of each case, of this checkout and of an earlier one."""

import argparse
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.survival.cases import CASES, Case
from bench.survival.clients import ask, request
from bench.survival.gateway import Gateway, checkout, start_gateway
from bench.survival.pulse import Pulse
from bench.survival.sockets import make_input, open_socket
from bench.tools import ROOT, say

SETTLE_S = 1.0
HEAD = "| case | of | answers | kept MB | peak MB | p99 late ms | worst ms | seconds | within bounds |"


@dataclass(frozen=True)
class Result:
    answers: str
    kept_mb: float
    peak_mb: float
    p99_s: float
    worst_s: float
    seconds: float

    def keeps(self, case: Case) -> bool:
        return (
            self.kept_mb <= case.most_kept_mb
            and self.peak_mb <= case.most_peak_mb
            and self.p99_s <= case.most_p99_s
            and self.seconds <= case.most_seconds
            and self.answers.startswith(case.expected)
        )

    def row(self, case: Case, name: str) -> str:
        figures = f"{self.kept_mb:.0f} | {self.peak_mb:.0f} | {self.p99_s * 1e3:.0f} | {self.worst_s * 1e3:.0f}"
        verdict = "yes" if self.keeps(case) else "no"
        return f"| {case.name} | {name} | {self.answers} | {figures} | {self.seconds:.1f} | {verdict} |"


def measure(case: Case, src: Path) -> Result:
    run = case.prepare()
    with start_gateway(src, case.patience_s, case.settings) as gateway:
        warm_up(gateway)
        time.sleep(SETTLE_S)
        with Pulse(gateway.port) as pulse:
            before = gateway.resident_mb()
            gateway.reset_peak()
            pulse.mark()
            began = time.monotonic()
            answers = run(gateway)
            seconds = time.monotonic() - began
            time.sleep(SETTLE_S)
            pulse.mark()
            kept, peak = gateway.resident_mb() - before, gateway.peak_mb() - before
            late = sorted(pulse.delays())
        p99 = late[int(len(late) * 0.99)] if late else float("inf")
        return Result(answers, kept, peak, p99, late[-1] if late else float("inf"), seconds)


def warm_up(gateway: Gateway) -> None:
    """Load what the first request of each kind loads, so that it does not count."""
    body = b'{"model": "chat/ok", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello there."}]}'
    for kind in ("chat", "messages", "count"):
        ask(gateway.port, request(kind, body))
    with open_socket(gateway) as client:
        client.ask(make_input(10))


def main() -> int:
    options = read_options()
    chosen = [case for case in CASES if re.search(options.only, case.name)]
    failed = False
    with ExitStack() as stack:
        sources = {"after" if options.before else "here": options.src}
        if options.before:
            sources = {"before": stack.enter_context(checkout(options.before)), **sources}
        lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
        say("\n".join(lines))
        for case in chosen:
            for name, src in sources.items():
                if name == "before" and case.is_later:
                    continue
                result = measure(case, src)
                lines.append(result.row(case, name))
                say(lines[-1])
                failed = failed or (name != "before" and not result.keeps(case))
    if options.write:
        write_table(options.write, lines)
    return int(failed)


def write_table(page: Path, lines: list[str]) -> None:
    """Put the table between the page's marks."""
    begin, end = "<!-- survival: begin -->", "<!-- survival: end -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text("\n".join([before + begin, *lines, end + after]))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.survival", description=__doc__)
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the package directory of the gateway to run")
    parser.add_argument("--before", metavar="REVISION", help="measure this commit too, for comparison")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only cases whose names match")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page, between its marks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""A running Claude Code session in the live inspector of the console."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from clients.claude_code import ask, result
from clients.rig import Rig
from console.browser import Browser
from console.feed_reader import FeedReader
from dragoman.operate.captures.timeline import build_timeline
from fakes.agent import Use
from gateway import KEY


class Inspectors(threading.Thread):
    """Opens an inspector for every request that the live page shows, while it is answered."""

    def __init__(self, browser: Browser) -> None:
        super().__init__(daemon=True)
        self._browser = browser
        self.feed = FeedReader(browser, "watch=live")
        self.opened: dict[str, FeedReader] = {}
        self.stopping = threading.Event()

    def wait_for_requests(self, least: int) -> None:
        """Wait until so many inspectors are open: one looks at a request for a while after its end, too."""
        patience = time.monotonic() + 60.0
        while len(self.opened) < least and time.monotonic() < patience:
            time.sleep(0.05)
        assert len(self.opened) >= least, self.feed.rows

    def run(self) -> None:
        while not self.stopping.wait(0.05):
            for row in self.feed.rows.values():
                name = str(row["request_id"])
                if name not in self.opened:
                    self.opened[name] = FeedReader(self._browser, f"watch=live&frames={name}")


def test_the_live_inspector_shows_what_the_captures_of_claude_code_show(
    rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = f'[debug]\ncapture = "all"\ndirectory = "{tmp_path}/captures"\n'
    run = Use("Bash", {"command": "echo hello-from-tool", "description": "say hello"})
    here = rig("kiro", run, settings=settings)
    browser = Browser(here.gateway)
    assert browser.sign_in(KEY).status == 200
    inspectors = Inspectors(browser)
    inspectors.start()
    ran = ask(here, client("claude-code"), "Say hello.")
    assert result(ran)["subtype"] == "success", ran
    feed = inspectors.feed
    feed.wait_for(lambda: all(row["state"] == "ended" for row in feed.rows.values()))
    inspectors.wait_for_requests(2)
    inspectors.stopping.set()
    inspectors.join(30)
    for name, reader in inspectors.opened.items():
        expected = [(entry.at, entry.side, entry.text[:4000]) for entry in build_timeline(here.gateway.capture(name))]
        reader.wait_for_entries(len(expected))
        shown = [(entry["at"], entry["side"], str(entry["text"])[:4000]) for entry in reader.entries]
        assert sorted(shown, key=str) == sorted(expected, key=str)
        reader.close()
    assert {row["client"] for row in feed.rows.values()} == {"claude-cli"}
    feed.close()

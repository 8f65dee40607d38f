"""A browser without a screen or a script: it sends what a browser sends, and keeps its cookie."""

from dataclasses import dataclass, field

import asking
from asking import Reply
from gateway import Running


@dataclass
class Browser:
    """One browser with one tab; `token` is what the page keeps in its session storage."""

    gateway: Running
    cookie: str = ""
    token: str = ""
    headers: dict[str, str] = field(default_factory=dict)  # sent in place of the usual ones; "" leaves one out

    def send(self, method: str, path: str, body: object = None, **changed: str) -> Reply:
        host = f"127.0.0.1:{self.gateway.port}"
        fields = {"host": host, "sec-fetch-site": "same-origin", "cookie": self.cookie}
        fields["x-dragoman-console"] = self.token
        if method != "GET":
            fields["origin"] = f"http://{host}"
        fields |= self.headers | {name.replace("_", "-"): value for name, value in changed.items()}
        sent = {name: value for name, value in fields.items() if value}
        return asking.send(self.gateway, method, path, body, key=None, headers=sent)

    def sign_in(self, key: str = "", link: str = "") -> Reply:
        reply = self.send("POST", "/console/session", {"key": key} if key else {"link": link})
        if reply.status == 200:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
            self.token = str(reply.json["token"])
        return reply


def sign_in(gateway: Running, key: str) -> Browser:
    browser = Browser(gateway)
    assert browser.sign_in(key).status == 200
    return browser


def error_code(reply: Reply) -> str:
    return str(reply.json["error"]["code"])

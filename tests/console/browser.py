"""A browser without a screen or a script: it sends what a browser sends, and keeps its cookie."""

import http.client
from dataclasses import dataclass, field

import msgspec

from gateway import Running
from wire_json import JsonObject


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        return msgspec.json.decode(self.body, type=JsonObject)

    @property
    def code(self) -> str:
        error = self.json["error"]
        assert isinstance(error, dict)
        return str(error["code"])


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
        if body is not None:
            fields["content-type"] = "application/json"
        fields |= self.headers | {name.replace("_", "-"): value for name, value in changed.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=30)
        data = msgspec.json.encode(body) if body is not None and not isinstance(body, bytes) else body
        connection.request(method, path, data, {name: value for name, value in fields.items() if value})
        answer = connection.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return reply

    def sign_in(self, key: str = "", link: str = "") -> Reply:
        reply = self.send("POST", "/console/session", {"key": key} if key else {"link": link})
        if reply.status == 200:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
            self.token = str(reply.json["token"])
        return reply

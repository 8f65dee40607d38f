"""An MCP server over standard input and output that starts in no time; `mcp_server.py` is one of the official SDK."""

import json
import sys

TOOLS = ("search", "read")


def call(name: str, given: dict[str, str]) -> str:
    if name == "read":
        return f"Title: The page\n\nContent of {given['url']}"
    found = {"title": f"About {given['query']}", "url": f"https://a.example/{given['query']}"}
    return json.dumps({"results": [found]})


for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "fake", "version": "1"}
            result: object = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        case "tools/call":
            text = call(message["params"]["name"], message["params"]["arguments"])
            result = {"content": [{"type": "text", "text": text}], "isError": False}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)

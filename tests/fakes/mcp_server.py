"""An MCP server made with the official SDK: `python mcp_server.py stdio` or `python mcp_server.py PORT`."""

import json
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("fake search")


@server.tool()
def search(query: str) -> str:
    """Search an invented web."""
    if query == "fail":
        raise ValueError("the index is broken")
    found = {"title": f"About {query}", "url": f"https://a.example/{query}", "snippet": "All about it."}
    return json.dumps({"results": [{**found, "publishedDate": 1760000000000}], "error": None})


@server.tool()
def prose(query: str) -> str:
    """Search, and answer in prose."""
    return f"Title: First about {query}\nURL: https://a.example/1\n\nTitle: Second\nURL: https://b.example/2."


@server.tool()
def read(url: str) -> str:
    """Return a page as text."""
    return f"Title: The page\n\nContent of {url}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]), json_response="json" in sys.argv)

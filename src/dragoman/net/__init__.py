"""HTTP/1.1 on asyncio: a server that passes requests to a handler, and a client that returns responses."""

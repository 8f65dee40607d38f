"""HTTP/1.1 on asyncio: a server that passes exchanges to a handler, and a client that returns responses."""

"""HTTP/1.1 on asyncio: a server that hands out exchanges, and a client that gives back answers."""

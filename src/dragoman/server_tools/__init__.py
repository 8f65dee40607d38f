"""Tools that the gateway runs itself, for clients whose upstream cannot: web search and web fetch."""

"""OpenAI's own API."""

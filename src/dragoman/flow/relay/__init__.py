"""Pass requests of the other OpenAI paths to an upstream, and their replies back, unchanged."""

"""Configuration: dragoman.toml, environment variables and flags, read and validated into one frozen Config."""

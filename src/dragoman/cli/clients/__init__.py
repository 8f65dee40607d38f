"""The clients that `dragoman connect` knows, and how their settings are read and changed."""

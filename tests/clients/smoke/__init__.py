"""The clients that every test run includes."""

"""Echo: the built-in provider that answers without an account."""

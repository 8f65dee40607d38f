"""Echo: an upstream inside the gateway that needs no account, repeats its input, and fails on request."""

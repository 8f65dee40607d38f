"""The upstream that is always there: it needs no account, repeats what it is told, and fails on request."""

"""All the I/O of a request: from the client's body to the upstream's answer and back."""

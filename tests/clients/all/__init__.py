"""What needs every client, or takes long: run by `make test-rest`, and when named."""

"""The other clients: run when named."""

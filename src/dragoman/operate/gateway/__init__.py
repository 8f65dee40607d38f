"""The gateway as a process: find it, ask it, run it as a service."""

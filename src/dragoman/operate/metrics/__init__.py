"""Metrics of the process and of all workers, and their export to an OpenTelemetry collector."""

"""Observers of events and of finished requests: metrics, log lines and summaries. They change nothing."""

"""Kiro, towards upstreams: nobody speaks it to us."""

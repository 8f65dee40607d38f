"""Run captured exchanges again: compare, make fixtures, and replay their upstreams."""

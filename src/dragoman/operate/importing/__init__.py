"""Read the configuration of another gateway: a reader for each, over values that record what became of every field."""

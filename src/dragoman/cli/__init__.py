"""The command line: one file per command; what several of them need stands beside them."""

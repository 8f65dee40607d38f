"""A compatible server comes in; what it takes, refuses and leaves out goes out, learnt by asking it."""

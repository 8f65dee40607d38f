"""What a model can do, and how many tokens a request has."""

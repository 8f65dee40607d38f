"""What a reply may need besides its first upstream turn: each kind with its decision and its change of the request."""

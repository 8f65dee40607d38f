"""What only watches: events, outcomes and exchanges come in; figures, lines and captures go out, nothing is changed."""

"""What a gateway that is killed leaves behind: background responses and stored streams."""

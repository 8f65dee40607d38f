"""Find out which protocols and quirks a compatible server has."""

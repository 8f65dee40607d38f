"""What the gateway tells of itself: readings for a scrape, shared by workers, and exports to a collector."""

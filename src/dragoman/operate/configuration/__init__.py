"""Read, show and edit the configuration."""

"""What one hostile request, upstream or reader costs other clients, measured against a real gateway process."""

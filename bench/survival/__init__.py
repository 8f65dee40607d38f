"""What one hostile request, upstream or reader costs everybody else, measured against a real gateway process."""

"""Many agents on one budget: by how much it is overspent, and whether all of it gets used."""

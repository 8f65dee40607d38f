"""What clients call: paths, keys, and the order in which a request is checked before it is answered."""

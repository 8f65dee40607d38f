"""What `dragoman usage` is made of."""

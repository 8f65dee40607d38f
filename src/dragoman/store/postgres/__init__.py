"""The store on PostgreSQL: a small pool of connections."""

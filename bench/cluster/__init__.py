"""Several gateways on one PostgreSQL, with Valkey and without: how exact limits are, and what faults do."""

"""Who may use the gateway: client keys and the sessions of the console."""

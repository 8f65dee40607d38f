"""Which upstream answers for a model name: pure functions over the configuration and the catalogues."""

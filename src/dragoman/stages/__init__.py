"""Events come in, events go out: the machines that a reply passes on its way from an upstream to a client."""

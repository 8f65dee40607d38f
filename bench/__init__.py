"""The side-by-side benchmark: nginx, LiteLLM and dragoman before one fake upstream, in one run, on one machine."""

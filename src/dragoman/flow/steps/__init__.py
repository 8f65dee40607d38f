"""The steps of a call's story, one file each; `flow/serve.py` has the stories."""

"""The steps of a call's story, one file each; `proxy/serve.py` has the stories."""

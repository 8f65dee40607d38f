"""The operations of an administrator, as functions that need no terminal and no socket.

Every function returns typed values; progress and prompts go through callbacks and iterators. The commands in `cli/`
turn these values into text.
"""

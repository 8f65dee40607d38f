"""What an operator can ask for, as functions without a terminal or a socket of their own.

Every function returns typed values; progress and prompts go through callbacks and iterators. The commands in `cli/`
turn these values into text.
"""

"""Backends of a tape: none, a list, a file, a server, or several of them."""

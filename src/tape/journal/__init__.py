"""The journal: append, read, list, history, retention and verification."""

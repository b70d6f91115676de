"""What runs inside a server process: plain functions on a transaction, and the loops that call them."""

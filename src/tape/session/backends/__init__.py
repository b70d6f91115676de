"""Where a tape is kept besides memory: nowhere, a list, a file, a server, or several of them."""

"""What `tape demo …` shows: real processes, a real server, and a bank that keeps its book in a file."""

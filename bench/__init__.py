"""What Tape can do, measured beside what else there is: `python -m bench`."""

"""The report: what happened within a window, as a page that people can look at."""

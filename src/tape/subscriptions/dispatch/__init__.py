"""From a routed message to a run: circuits, order, and the calls that begin runs."""

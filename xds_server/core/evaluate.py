"""From samples to a plan: the one function to read first."""

"""Trained agents at play: evaluations by the paper's protocol, and videos."""

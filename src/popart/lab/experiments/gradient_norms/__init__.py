"""Fig. 1b: norms of gradients on Atari games whose rewards differ by orders of magnitude."""

"""Games: Atari in worker processes and small compiled ones. They know nothing of agents."""

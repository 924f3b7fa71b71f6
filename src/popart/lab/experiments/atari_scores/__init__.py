"""Table 1 and Fig. 2: the published scores on 57 Atari games."""

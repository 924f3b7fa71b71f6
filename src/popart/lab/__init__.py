"""The laboratory: the paper's experiments, one command each. `popart --help` lists them."""

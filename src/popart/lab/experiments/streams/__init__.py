"""Running regression on targets whose size changes, with every normalisation."""

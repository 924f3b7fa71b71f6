"""The experiments of the paper, one folder each: settings, run and analysis. None imports another."""

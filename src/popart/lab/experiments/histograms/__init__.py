"""Fig. 3 of the appendix: the distribution of normalised targets, limited by β or by s."""

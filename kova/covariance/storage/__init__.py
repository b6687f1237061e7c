"""How the numbers of a covariance are kept: the blocks that structures are made of."""

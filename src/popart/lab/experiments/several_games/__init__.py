"""Several small games with rewards of different size, learned by one network."""

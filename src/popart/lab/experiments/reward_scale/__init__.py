"""Small games with rewards multiplied by very different scales."""

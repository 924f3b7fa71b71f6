"""Section 3 and Fig. 1a: online regression with rare large targets."""

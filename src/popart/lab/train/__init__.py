"""Training: members of a fleet learn as one program, and trackers record what happens (Section 4)."""

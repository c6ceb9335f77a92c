"""A new model: its exam for people to review, and its directory for the lane."""

"""Token by token and value by value: how far results lie from the oracle, and whether that is acceptable."""

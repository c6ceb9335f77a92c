"""Token by token on a whole model: units of work, what is kept of every token, and what follows from it."""

"""Two servers token by token, over HTTP: the same prompts, the log-probabilities of both, held to the noise of one."""

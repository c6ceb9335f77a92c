"""Text from a model that lies on this machine, token by token: one path in a process of its own, served fairly."""

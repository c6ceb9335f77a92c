"""The lane: who proposes, what may be touched, what is kept, what is shown."""

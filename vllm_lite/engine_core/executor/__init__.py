"""How the engine core drives its hands: in its own process, in others, or a toy."""

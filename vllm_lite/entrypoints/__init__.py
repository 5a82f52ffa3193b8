"""The street: what a person touches."""

"""Attention over the paged KV cache: one metadata object, several backends."""

"""Process 2, where the truck is loaded: threads and a busy loop, no torch."""

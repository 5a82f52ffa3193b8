"""Process 1, the post office: asyncio, no torch."""

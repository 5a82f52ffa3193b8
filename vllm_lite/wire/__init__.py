"""All that crosses a process border: messages, step plans, sockets. Nothing else is shared between processes."""

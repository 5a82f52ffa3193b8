"""The window: draws journeys in a terminal. Knows only tracing."""

"""The hands, and the only place with torch: process 3, or a place in process 2."""

"""What is counted of requests, steps and times, and who reports it."""

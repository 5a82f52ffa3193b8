"""Stat loggers."""

"""Engines that break a law on purpose: what shows that a law can fail."""

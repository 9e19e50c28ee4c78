"""Replay: the error of each op alone, in rounding units."""

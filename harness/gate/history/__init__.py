"""Bugs of released libraries as cases: shown on the bad releases, and not on the good ones."""

"""Figures that were measured elsewhere, measured again: ``parity seeds``.

One small function a fact, in the module of its subject; :mod:`harness.seeds.facts` lists them.
"""

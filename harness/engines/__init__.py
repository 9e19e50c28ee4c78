"""Engines: whatever computes logits, behind one protocol."""

"""Records what a release of transformers makes of a model, taps included, for any architecture.

This package runs in other environments, where the rest of this project is not importable: it needs
the standard library, NumPy, torch, safetensors and transformers of any release from 4.40 on, and
imports nothing but itself by relative imports. The parent's side is ``harness/gate/recording.py``.
"""

"""An independent reimplementation of decoder language models, written from papers and configs.

It imports neither transformers nor the harness, so that it can stand as the other side of a
comparison. Every intermediate is produced through a ``step`` that the model is handed: see
:mod:`references.step`.
"""

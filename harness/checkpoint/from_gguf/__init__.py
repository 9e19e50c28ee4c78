"""GGUF files, converted once into a directory that transformers can load."""

from .cache import convert_gguf

__all__ = ["convert_gguf"]

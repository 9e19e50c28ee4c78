"""Checkpoints from directories, GGUF files and the hub: memory-mapped, checked, never unpickled."""

from ..cache_folder import CACHE_VARIABLE, default_cache_dir
from .checkpoint import Checkpoint
from .load import load_checkpoint
from .tokenizer import decode, encode, token_texts
from .verify import NonFinite, check_finite, check_tensors, find_nonfinite

__all__ = [
    "CACHE_VARIABLE",
    "Checkpoint",
    "NonFinite",
    "check_finite",
    "check_tensors",
    "decode",
    "default_cache_dir",
    "encode",
    "find_nonfinite",
    "load_checkpoint",
    "token_texts",
]

"""What keeps a tokenizer from being rebuilt."""


class TokenizerProblem(Exception):
    """Why a tokenizer cannot be rebuilt from a GGUF file."""

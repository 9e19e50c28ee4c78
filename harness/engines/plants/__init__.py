"""How to make each mistake in a transformers model, written apart from the catalogue's variants."""

"""The catalogue of faults: mistakes that people make when they port, convert or serve a model."""

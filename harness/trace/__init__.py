"""Trace files: one run of one engine, written by whoever has a safetensors writer.

The format is specified in ``docs/trace-format.md``.
"""

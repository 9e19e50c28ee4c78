"""The numbers that the verdict rests on, each of them once.

``docs/rounding.md`` holds the measurements behind them.
"""

#: Every compared value within this of the reference, absolutely: the contract of a ``pass``.
TOLERANCE = 1e-4

#: An op whose own error exceeds this many rounding units does not replay.
UNIT_LIMIT = 16.0

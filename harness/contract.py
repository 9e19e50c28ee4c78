"""The numbers that the verdict rests on, each of them once.

``docs/rounding.md`` holds the measurements behind them.
"""

#: Every compared value within this of the reference, absolutely: the contract of a ``pass``.
TOLERANCE = 1e-4

#: An op whose own error exceeds this many rounding units does not replay.
UNIT_LIMIT = 8.0

#: A candidate that gives no op to replay may differ from float64 by this many times what the
#: float32 reference differs from it: both are single draws of the same accumulated rounding.
WEAK_FLOOR_FACTOR = 8.0

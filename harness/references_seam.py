"""The one place where the harness imports the reference.

Everything inside this package imports relatively, so that it still works when it is loaded under
another parent because somebody's repository has a ``harness`` folder of its own.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING or "." not in __package__:
    from references import cache, errors, families, model, ops, rope, step
else:
    from ..references import cache, errors, families, model, ops, rope, step

__all__ = ["cache", "errors", "families", "model", "ops", "rope", "step"]

"""The one place where the harness imports the reference.

Everything inside this package imports relatively, so that it still works when it is loaded under
another parent because somebody's repository has a ``harness`` folder of its own.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING or "." not in __package__:
    from references import cache, config, errors, families, model, ops, rope, rope_config, step
else:
    from ..references import cache, config, errors, families, model, ops, rope, rope_config, step

__all__ = ["cache", "config", "errors", "families", "model", "ops", "rope", "rope_config", "step"]

"""All facts, in the order of the table."""

from . import agreement, attention, caching, rotary
from .fact import Fact

_CANDLE = "candle is none of the engines here; its logits can be compared as a trace"

#: What is known but cannot be measured with these engines.
ELSEWHERE = (
    Fact("candle CPU against eager, against sdpa", "2.98e-5, 4.29e-5", reason=_CANDLE),
    Fact("candle Metal against eager, against sdpa", "3.53e-5, 3.72e-5", reason=_CANDLE),
    Fact("used cache, second prompt in candle", "an error, or silent", reason=_CANDLE),
)

FACTS = (*agreement.FACTS, *rotary.FACTS, *attention.FACTS, *caching.FACTS, *ELSEWHERE)

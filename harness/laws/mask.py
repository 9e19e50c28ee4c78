"""Laws of group mask."""

from .law import Law

LAWS: tuple[Law, ...] = ()

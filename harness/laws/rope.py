"""Laws of group rope."""

from .law import Law

LAWS: tuple[Law, ...] = ()

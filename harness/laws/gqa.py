"""Laws of group gqa."""

from .law import Law

LAWS: tuple[Law, ...] = ()

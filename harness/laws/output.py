"""Laws of group output."""

from .law import Law

LAWS: tuple[Law, ...] = ()

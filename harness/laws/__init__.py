"""Laws: what any engine must obey, whatever its numbers are.

A law says that two ways of computing come to the same, or what a number may depend on. It needs
no reference and no recorded output, so that it holds for a port of any model. :mod:`.law` has the
form, one module a group the laws, :mod:`.catalogue` all of them.
"""

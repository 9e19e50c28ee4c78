"""What the pytest plugin consists of; :mod:`pytest_logits_parity` has the hooks.

Modules here import pytest, and the rest of the harness only when a case or a check runs: a session
without either stays as light as it was.
"""

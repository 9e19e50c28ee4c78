"""What tests/ and cases/ share: how property tests draw their examples."""

import hypothesis

# The same examples at every run; `pytest --hypothesis-profile=default` draws new ones.
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("fixed")

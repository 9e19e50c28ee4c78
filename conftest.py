"""What tests/ and cases/ share: how property tests draw their examples."""

import hypothesis

# The same examples at every run; `pytest --hypothesis-profile=random` draws new ones.
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fixed")

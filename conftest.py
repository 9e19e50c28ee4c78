"""What tests/ and cases/ share: how property tests draw their examples."""

import os

import hypothesis

# The same examples at every run; `pytest --hypothesis-profile=random` draws new ones.
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
# `make fuzz`: new ones each time, and many.
hypothesis.settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "5000")),
    deadline=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("fixed")

"""From ops that do not replay to the mistakes that explain them."""

"""The score: how many planted faults are caught, placed and named."""

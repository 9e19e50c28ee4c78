"""Constants of ops, fitted to what a candidate computed: pure functions of arrays."""

"""The upgrade gate: does another release of a library make another model of the same weights?"""

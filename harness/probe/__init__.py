"""Probe inputs: prompts that bring to light what ordinary ones hide, and what stays hidden.

Some faults change nothing on an ordinary prompt: another epsilon where mean squares are large, a
window that the prompt does not fill, the order of kv heads where all are one. From a checkpoint's
config and weights, :func:`harness.probe.plan.plan` makes inputs for those that this model can have,
and says with numbers which remain invisible. All of it is pure.
"""

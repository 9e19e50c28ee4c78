"""A doctor for one run."""

from collections.abc import Sequence

from ..faults.catalogue import catalogue
from ..faults.fault import Facts
from ..participants import Participant
from ..subject import Subject
from .doctor import Doctor


def doctor_of(subject: Subject, participants: Sequence[Participant]) -> Doctor:
    """A doctor with the whole catalogue.

    Args:
        subject: The model.
        participants: Whom to look at.
    """
    checkpoint = subject.checkpoint
    return Doctor(
        catalogue(),
        Facts(checkpoint.config, checkpoint.tensors),
        {side.name: side.parameters for side in participants},
    )

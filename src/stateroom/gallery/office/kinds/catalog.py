"""All kinds of tasks, from short to long."""

from stateroom.gallery.office.kinds.kind import Asked, Kind
from stateroom.gallery.office.kinds.meetings import ClearDay, CommonSlot, Invite, MovedMeeting, Reschedule
from stateroom.gallery.office.kinds.money import (
    FileLarge,
    FileReceipt,
    SettleExpense,
    SettleLarge,
    SettleSplit,
    SettleTrip,
    ShareOutside,
)
from stateroom.gallery.office.kinds.simple import (
    Categorise,
    CloseTicket,
    FileMail,
    MoveFile,
    NewPhone,
    RenameFile,
    SetPriority,
)
from stateroom.gallery.office.kinds.teamwork import (
    AnswerStatus,
    CoverLeave,
    Handover,
    Kickoff,
    MergeDuplicates,
    ShareWithTeam,
)

KINDS: tuple[Kind, ...] = (
    SetPriority(),
    CloseTicket(),
    RenameFile(),
    MoveFile(),
    NewPhone(),
    Categorise(),
    FileMail(),
    Invite(),
    ShareWithTeam(),
    MovedMeeting(),
    CommonSlot(),
    Reschedule(),
    AnswerStatus(),
    MergeDuplicates(),
    SettleExpense(),
    ClearDay(),
    CoverLeave(),
    Kickoff(),
    FileReceipt(),
    SettleLarge(),
    ShareOutside(),
    FileLarge(),
    SettleTrip(),
    SettleSplit(),
    Handover(),
)


def recognise(prompt: str) -> tuple[Kind, Asked] | None:
    """The kind of a task, and what it asks, by the wording of its prompt; None for an unknown one."""
    for kind in KINDS:
        asked = kind.read(prompt)
        if asked is not None:
            return kind, asked
    return None

"""Reservations and partitions as printed by scontrol of Slurm 24.11.5 (tests/printers/test_slurm.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_ROW = (
    "ReservationName={name} StartTime=2026-11-29T16:13:02 EndTime=2026-11-29T17:13:02 Duration={duration} "
    "Nodes=(null) NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) "
    "Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=1 "
    "MaxStartDelay=(null) {comment}\n"
)


@dataclass
class Reservations:
    """Reservations in memory. `sizes`: partition → node count; `refuses`: command → error, with status 1.
    `comments`: whether this release supports a reservation's Comment."""

    sizes: dict[str, int] = field(default_factory=lambda: {"gpu": 100})
    there: dict[str, str] = field(default_factory=dict)  # name → comment
    comments: bool = True
    refuses: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def knows(words: Sequence[str]) -> bool:
        """Whether these arguments are about reservations or partitions."""
        return words[0] in ("create", "delete") or words[1] in ("reservation", "partition")

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        words = tuple(words)
        given = dict(word.partition("=")[::2] for word in words)
        if refused := self.refuses.get(words[0]) or self.refuses.get(words[1]):
            return 1, refused
        if words[:2] == ("show", "partition"):
            if words[2] not in self.sizes:
                return 1, f"Partition {words[2]} not found\n"
            size = self.sizes[words[2]]
            return 0, f"PartitionName={words[2]}\n   State=UP TotalCPUs={2 * size} TotalNodes={size} X=NONE\n"
        if words[:2] == ("show", "reservation"):
            rows = [
                _ROW.format(name=name, duration="01:00:00", comment=f"Comment={text}" if text else "")
                for name, text in self.there.items()
            ]
            return 0, "".join(rows) or "No reservations in the system\n"
        name = given["ReservationName"]
        if words[0] == "delete":
            if self.there.pop(name, None) is None:
                return 1, f"delete_reservation ReservationName={name}: Requested reservation is invalid\n"
            return 0, ""
        if "Comment" in given and not self.comments:
            text = f"Unknown parameter Comment={given['Comment']}.  No reservation created."
            return 1, f"scontrol: error: {text}\n"
        if name in self.there:
            return 1, "Error creating the reservation: Duplicate reservation name\n"
        self.there[name] = given.get("Comment", "")
        return 0, f"Reservation created: {name}\n"

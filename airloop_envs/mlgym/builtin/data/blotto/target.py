"""The opponent: it draws one of these forces by its weight and sends it to the fields in random order."""

from __future__ import annotations

FIELDS = 6
SOLDIERS = 120
FORCES = (
    (0.20, (24, 24, 24, 24, 24, 0)),
    (0.20, (30, 30, 30, 30, 0, 0)),
    (0.15, (36, 36, 16, 16, 16, 0)),
    (0.20, (40, 34, 28, 10, 6, 2)),
    (0.25, (38, 38, 22, 12, 8, 2)),
)

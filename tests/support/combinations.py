"""Some tens of specs that hold all pairs of field values."""

from __future__ import annotations

from support.fields import IO, VALUES, problems
from support.pairs import covering_array

#: The fields, and two facts of the tensors: the dtype of x and that of free parameters.
AXES = {**VALUES, "io": IO, "free": IO}

COMBINATIONS, UNREACHABLE = covering_array(AXES, problems)

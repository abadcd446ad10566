"""What is said of a name that the table does not have."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

HOW = (
    "if the norms of a known type are its norms too, add --like TYPE; else answer "
    "--variant, --hidden-size, --eps, --rounding-normalized, --weight-offset and "
    "--out-dtype"
)


def unknown(model_type: str, known: Iterable[str]) -> str:
    """One sentence: the nearest names, and how to go on."""
    names = list(known)
    near = get_close_matches(model_type, names, n=5, cutoff=0.6)
    head = model_type.replace("-", "_").split("_")[0].rstrip("0123456789.")
    near += [n for n in names if head and n.startswith(head) and n not in near][:5]
    nearest = f"nearest: {', '.join(near[:5])}" if near else "none is near"
    return f'model_type: "{model_type}" is not a known type ({nearest}); {HOW}'

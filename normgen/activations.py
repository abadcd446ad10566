"""Activations: the value of one, what value and slope share, and its slope.

Formulas are in terms of ``z``; ``shared`` values are named, in order.  Sources: SiLU by
Elfwing et al. (2017), GELU and its tanh form by Hendrycks and Gimpel (2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_ROOT_HALF = math.sqrt(0.5)
_NORMAL = 1 / math.sqrt(2 * math.pi)
_STEEPNESS = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@dataclass(frozen=True)
class Activation:
    """One activation of ``z``; the slope is its derivative."""

    value: str
    slope: str
    shared: Mapping[str, str]


ACTIVATIONS = {
    "relu": Activation("relu(z)", "where(z <= 0.0, 0.0, 1.0)", {}),
    "sigmoid": Activation(
        "given_sigmoid(z, sigma)", "sigma * (1.0 - sigma)", {"sigma": "sigmoid(z)"}
    ),
    "tanh": Activation("given_tanh(z, bend)", "1.0 - bend * bend", {"bend": "tanh(z)"}),
    "silu": Activation(
        "silu(z, sigma)", "sigma * (1.0 + z * (1.0 - sigma))", {"sigma": "sigmoid(z)"}
    ),
    "gelu": Activation(
        "gelu(z, cdf)",
        "cdf + z * pdf",
        {
            "cdf": f"0.5 * (1.0 + erf(z * {_ROOT_HALF!r}))",
            "pdf": f"exp(-0.5 * z * z) * {_NORMAL!r}",
        },
    ),
    "gelu_tanh": Activation(
        "gelu_tanh(z, cdf)",
        "cdf + 0.5 * z * (1.0 - bend * bend) * inner_slope",
        {
            "cubic": f"z + {_CUBIC} * z * z * z",
            "bend": f"tanh({_STEEPNESS!r} * cubic)",
            "cdf": "0.5 * (1.0 + bend)",
            "inner_slope": f"{_STEEPNESS!r} * (1.0 + {3 * _CUBIC!r} * z * z)",
        },
    ),
}

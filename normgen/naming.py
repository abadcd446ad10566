"""What tensors are called in Python: kernels and formulas use shorter names."""

from __future__ import annotations

from normgen.adjoint import gradient_name
from normgen.steps import OPERANDS

#: kernel name of an input -> the argument of the function
ARGUMENTS = {"x": "x", **{operand.name: operand.argument for operand in OPERANDS}}
#: kernel name of a result -> what it is called where it is returned
RESULTS = {"y": "y", "y2": "y2", "factor": "factor", "h": "residual_sum"}
#: kernel name of a tensor or gradient -> its variable on the host
VARIABLES = {
    **ARGUMENTS,
    **RESULTS,
    **{gradient_name(t): gradient_name(name) for t, name in ARGUMENTS.items()},
    **{gradient_name(t): gradient_name(t) for t in RESULTS},
    gradient_name("h"): "dsum",
}

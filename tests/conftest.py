"""Where the tests run: on a GPU where there is one, else in Triton's interpreter.

Nobody sets a switch.  Triton reads TRITON_INTERPRET when it is imported, so it is set
here, before any test module loads, in every xdist worker.  A machine without a GPU's
device node is told apart without importing torch: most of the suite needs neither.
"""

from __future__ import annotations

import glob
import os

import pytest

GPU_NODES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")


def _gpu_is_usable() -> bool:
    if not any(glob.glob(pattern) for pattern in GPU_NODES):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


os.environ.setdefault("TRITON_INTERPRET", "0" if _gpu_is_usable() else "1")
ON_GPU = os.environ["TRITON_INTERPRET"] != "1"

pytest.register_assert_rewrite("support")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ON_GPU:
        return
    needs_gpu = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(needs_gpu)


@pytest.fixture(scope="session")
def device() -> str:
    """The device that the kernels run on: cuda, or cpu under the interpreter."""
    return "cuda" if ON_GPU else "cpu"


@pytest.fixture(scope="session")
def bfloat16_rounds_to_nearest() -> None:
    """Repairs the interpreter's float32 -> bfloat16 cast, which drops the low bits.

    A GPU rounds to the nearest even; Triton's interpreter (3.6 to 3.9 at least)
    truncates, which puts half of all values one ulp off.  The kernels are right and
    would be blamed, so the tests put a rounding cast in the interpreter's place.  Its
    way back up is exact already and is replaced by the plain shift for speed.
    """
    if ON_GPU:
        return
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(data, source, target, rounding_mode):
        if (source, target) == (tl.float32, tl.bfloat16):
            values = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
            rounded = values.to(torch.bfloat16).view(torch.int16).numpy()
            return rounded.view(np.uint16).reshape(data.shape)
        if (source, target) == (tl.bfloat16, tl.float32):
            return np.left_shift(data, 16, dtype=np.uint32)
        return original(data, source, target, rounding_mode)

    interpreter._convert_float = convert


@pytest.fixture(scope="session")
def alignment_claims_are_checked() -> None:
    """The interpreter takes tl.multiple_of on trust; here it looks at the addresses.

    On a GPU a false claim is a misaligned vector access.  The divisibility of a pointer
    is in bytes, and holds for the first element along each axis.
    """
    if ON_GPU:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.TensorHandle.set_attr

    def set_attr(self, name, values):
        if name == "tt.divisibility" and isinstance(self.dtype, tl.pointer_type):
            addresses = self.data
            for axis, claimed in enumerate(values):
                if claimed > 1:
                    first = (
                        addresses.take(0, axis=axis) if addresses.ndim else addresses
                    )
                    wrong = int((first % claimed != 0).sum())
                    assert not wrong, (
                        f"{wrong} addresses are not multiples of {claimed}"
                    )
        return original(self, name, values)

    interpreter.TensorHandle.set_attr = set_attr

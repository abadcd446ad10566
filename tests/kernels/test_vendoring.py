"""A generated file alone in another package: without normgen, triton or a switch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.build import make, text_of

NORMS = (
    make(name="rms_norm", normalized="io"),
    make(name="add_norm", residual="pre_add", variant="layer_norm", bias=True),
)

#: Makes ``name`` impossible to import, before anything else runs.
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""

USE = """
import torch
from my_models import norms

x = torch.randn(5, 72, requires_grad=True)
weight = torch.rand(72, requires_grad=True)
y = norms.rms_norm(x, weight)
y.sum().backward()
expected = norms.rms_norm_reference(x.detach(), weight.detach())
torch.testing.assert_close(y.detach(), expected)
assert x.grad.isfinite().all() and weight.grad.isfinite().all()

layer = norms.AddNorm(72)
y, total = layer(torch.randn(2, 3, 72), torch.randn(2, 3, 72))
assert y.shape == total.shape == (2, 3, 72)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a package with two copies of one generated file."""
    root = tmp_path_factory.mktemp("vendored")
    (root / "my_models").mkdir()
    (root / "my_models" / "__init__.py").write_text("")
    for name in ("norms.py", "again.py"):
        (root / "my_models" / name).write_text(text_of(*NORMS), encoding="utf-8")
    return root


def python(root: Path, code: str, *options: str, blocked=("normgen",), **environment):
    """Runs ``code`` in ``root`` without what is blocked; returns what it printed."""
    env = {
        k: v for k, v in os.environ.items() if not k.startswith(("TRITON", "PYTHON"))
    }
    done = subprocess.run(
        [sys.executable, *options, "-c", BLOCK.format(blocked=blocked) + code],
        cwd=root,
        env={**env, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("options", [("-W", "error"), ("-O",), ("-OO", "-W", "error")])
def test_a_copy_works_alone_with_its_kernels(package, options, device):
    python(package, on(device) + USE, *options, **kernels_on(device))


def on(device: str) -> str:
    return f"import torch\ntorch.set_default_device({device!r})\n"


def kernels_on(device: str) -> dict[str, str]:
    return {"TRITON_INTERPRET": "1" if device == "cpu" else "0"}


@pytest.mark.parametrize("options", [("-W", "error"), ("-O",)])
def test_on_a_cpu_without_a_switch_the_reference_runs(package, options):
    code = USE + textwrap.dedent(
        """
        import triton
        fake = "".join(type(v).__name__ for v in vars(norms).values())
        assert "InterpretedFunction" not in fake
        x = torch.randn(5, 72)
        y = norms.rms_norm(x, weight)
        assert torch.equal(y, norms.rms_norm_reference(x, weight))
        """
    )
    python(package, code, *options, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_without_triton_the_import_works_and_the_reference_runs(package, interpret):
    python(
        package,
        USE,
        *("-W", "error"),
        blocked=("normgen", "triton"),
        TRITON_INTERPRET=interpret,
        CUDA_VISIBLE_DEVICES="",
    )


def test_two_copies_in_one_process_do_not_meet(package, device):
    code = (
        on(device)
        + USE
        + textwrap.dedent(
            """
        import importlib
        from my_models import again
        again.rms_norm(x, weight).sum().backward()
        assert again.RMSNorm is not norms.RMSNorm
        assert torch.equal(again.rms_norm(x, weight), norms.rms_norm(x, weight))
        reloaded = importlib.reload(norms)
        assert torch.equal(reloaded.rms_norm(x, weight), again.rms_norm(x, weight))
        """
        )
    )
    python(package, code, "-W", "error", **kernels_on(device))


def test_the_import_asks_no_device_and_compiles_nothing(package):
    code = textwrap.dedent(
        """
        import torch
        def refuse(*args, **kwargs):
            raise AssertionError("the import asked for a device")
        torch.cuda.current_device = torch.cuda.get_device_properties = refuse
        torch.cuda.get_device_capability = torch.cuda._lazy_init = refuse
        from my_models import norms
        """
    )
    python(package, code, "-W", "error")


def test_only_torch_and_triton_are_imported(package):
    import ast

    allowed = {"torch", "triton", "typing", "__future__", "collections"}
    allowed |= set(sys.stdlib_module_names)
    tree = ast.parse((package / "my_models" / "norms.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module.split(".")[0] in allowed

"""Compiles kernels ahead of time, without a GPU; run as a script of its own.

Triton's own functions are interpreted in a process that has TRITON_INTERPRET set, so
that none can be compiled there.  Reads a list of jobs from standard input as JSON,
writes what the compiler used for each to standard output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def compile_all(jobs: list[dict[str, Any]], capability: int | str = 90) -> list[dict]:
    """The resources of each job, in a process without the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, __file__, str(capability)],
        input=json.dumps(jobs),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    failed = [result for result in results if "error" in result]
    assert not failed, failed
    return results


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _compile(job: dict[str, Any], capability: str) -> dict[str, Any]:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(_load(job["file"]), job["kernel"])
    dtypes = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}
    constexprs = {
        (kernel.arg_names.index(name),): dtypes.get(value, value)
        for name, value in job["constexprs"].items()
    }
    source = ASTSource(kernel, job["signature"], constexprs)
    is_amd = capability == "gfx942"
    target = GPUTarget("hip", capability, 64) if is_amd else None
    target = target or GPUTarget("cuda", int(capability), 32)
    compiled = triton.compile(source, target=target, options=job["options"])
    if is_amd:
        spilt = re.search(r"\.vgpr_spill_count: +(\d+)", compiled.asm["amdgcn"])
        return {"kernel": job["kernel"], "stack": int(spilt[1])}
    return {
        "kernel": job["kernel"],
        "warps": compiled.metadata.num_warps,
        "vectors": len(
            re.findall(r"(?:ld|st)\.global\S*\.v4\.b32", compiled.asm["ptx"])
        ),
        **_resources(compiled.asm["cubin"]),
    }


def _resources(cubin: bytes) -> dict[str, int]:
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tool), "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return {
        name.lower(): int(re.search(rf"{name}:(\d+)", text)[1])
        for name in ("REG", "STACK", "SHARED", "LOCAL")
    }


def _try(job: dict[str, Any], capability: str) -> dict[str, Any]:
    try:
        return _compile(job, capability)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", **job}


if __name__ == "__main__":
    print(json.dumps([_try(job, sys.argv[1]) for job in json.load(sys.stdin)]))

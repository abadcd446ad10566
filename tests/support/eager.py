"""Plain torch expressions, as models write them, and float32 eager norms.

For bit-exact comparison on the CPU, and for what torch itself returns where float32
overflows or an input is not finite.
"""

from __future__ import annotations

import torch


def _normalized(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x_hat in float32, as every RMSNorm of transformers begins."""
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(variance + eps)


def llama(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * _normalized(x, eps).to(x.dtype)


def gemma(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    output = _normalized(x, eps) * (1.0 + weight.float())
    return output.type_as(x)


def t5(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x_hat = _normalized(x, eps)
    if weight.dtype in [torch.float16, torch.bfloat16]:
        x_hat = x_hat.to(weight.dtype)
    return weight * x_hat


def olmo2(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return (weight * _normalized(x, eps)).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """float32 throughout, rounded to x at the end; differentiable."""
    return olmo2(x, weight, eps)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """float32, two-pass, rounded to x at the end; differentiable."""
    wide = x.to(torch.float32)
    centered = wide - wide.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    x_hat = centered * torch.rsqrt(variance + eps)
    return (x_hat * weight.float() + bias.float()).to(x.dtype)

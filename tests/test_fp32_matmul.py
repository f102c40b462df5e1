"""Products of narrow numbers, where a CPU has no instructions for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear

from airloop.models import fp32_matmul
from airloop.models.fp32_matmul import widen_products


@pytest.fixture
def wide() -> Iterator[None]:
    before = fp32_matmul._library is not None
    widen_products(True)
    yield
    widen_products(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_product_is_rounded_once(wide: None, dtype: torch.dtype) -> None:
    a, b, c = torch.randn(7, 65, dtype=dtype), torch.randn(9, 65, dtype=dtype), torch.randn(7, 9, dtype=dtype)
    up = torch.float64
    true = a.to(up) @ b.to(up).t()
    one_rounding = {"rtol": torch.finfo(dtype).eps, "atol": 65 * torch.finfo(torch.float32).eps * 9}
    for found, wanted in (
        (linear(a, b), true),
        (a @ b.t(), true),
        (linear(a, b, c[0]), true + c[0].to(up)),
        (torch.addmm(c, a, b.t(), beta=0.5, alpha=2.0), 0.5 * c.to(up) + 2.0 * true),
        (c.clone().addmm_(a, b.t()), c.to(up) + true),
        (torch.bmm(a[None], b.t()[None])[0], true),
    ):
        assert found.dtype == dtype and found.shape == wanted.shape
        torch.testing.assert_close(found.to(up), wanted, **one_rounding)


def test_gradients_pass_through(wide: None) -> None:
    torch.manual_seed(1)
    a, b = (torch.randn(n, 16, dtype=torch.bfloat16, requires_grad=True) for n in (5, 3))
    wide_a, wide_b = (x.detach().double().requires_grad_() for x in (a, b))
    linear(a, b).float().square().sum().backward()
    linear(wide_a, wide_b).square().sum().backward()
    for x, y in ((a, wide_a), (b, wide_b)):
        assert x.grad is not None and y.grad is not None and x.grad.dtype == torch.bfloat16
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=0.05, atol=0.3)


def test_it_is_as_before_afterwards() -> None:
    if fp32_matmul._library is not None:
        pytest.skip("this process has a model in narrow numbers")
    a, b = torch.randn(33, 65), torch.randn(65, 31)
    before = a @ b
    widen_products(True)
    widen_products(True)
    widen_products(False)
    assert torch.equal(a @ b, before) and fp32_matmul._library is None

"""torch's private attention kernels: the signatures that mill calls, and values against the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest

from mill.compat import cpu_flash_attention, cuda_flash_attention

torch = pytest.importorskip("torch")
SCALE = 0.3


def definition(q: Any, k: Any, v: Any, hidden: Any) -> tuple[Any, Any]:
    """Softmax attention and its log-sum-exp for (heads, tokens, size), in float64."""
    scores = (q.double() @ k.double().transpose(1, 2) * SCALE).masked_fill(hidden, float("-inf"))
    return scores.softmax(dim=2) @ v.double(), scores.logsumexp(dim=2)


def draw(*shape: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
def test_cpu_kernel_computes_attention_and_its_log_sum_exp(causal: bool) -> None:
    q, k, v = draw(2, 4, 7, 16)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else torch.zeros(7, 7, dtype=torch.bool)
    out, lse = cpu_flash_attention(q, k, v, scale=SCALE, causal=causal)
    for row in range(2):
        expected, expected_lse = definition(q[row], k[row], v[row], hidden)
        torch.testing.assert_close(out[row].double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse[row].double(), expected_lse, atol=1e-5, rtol=1e-5)


def test_cpu_kernel_adds_a_mask() -> None:
    q, k, v = draw(1, 4, 7, 16)
    hidden = torch.zeros(7, 7, dtype=torch.bool)
    hidden[:, 5:] = True
    mask = torch.zeros(1, 1, 7, 7).masked_fill(hidden, float("-inf"))
    out, lse = cpu_flash_attention(q, k, v, scale=SCALE, mask=mask)
    expected, expected_lse = definition(q[0], k[0], v[0], hidden)
    torch.testing.assert_close(out[0].double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse[0].double(), expected_lse, atol=1e-5, rtol=1e-5)


def test_cuda_kernel_has_the_arguments_that_mill_passes() -> None:
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:7] == ["query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k"]
    assert names[7:10] == ["dropout_p", "is_causal", "return_debug_mask"]
    assert {"scale", "seqused_k"} <= set(names[10:])
    assert len(schema.returns) >= 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_kernel_computes_packed_sequences(causal: bool) -> None:
    lengths = [3, 9]
    q, k, v = (one.to("cuda", torch.bfloat16) for one in draw(sum(lengths), 4, 64))
    bounds = torch.tensor([0, 3, 12], dtype=torch.int32, device="cuda")
    out, lse = cuda_flash_attention(
        q, k, v, bounds_q=bounds, bounds_k=bounds, longest_q=9, longest_k=9, scale=SCALE, causal=causal
    )
    for first, last in ((0, 3), (3, 12)):
        count = last - first
        hidden = torch.ones(count, count, dtype=torch.bool, device="cuda").triu(1 if causal else count)
        row_q, row_k, row_v = (one[first:last].transpose(0, 1) for one in (q, k, v))
        expected, expected_lse = definition(row_q, row_k, row_v, hidden)
        torch.testing.assert_close(out[first:last].transpose(0, 1).double(), expected, atol=0.03, rtol=0.03)
        torch.testing.assert_close(lse[:, first:last].double(), expected_lse, atol=0.01, rtol=0.01)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_kernel_reads_only_the_used_keys() -> None:
    q, k, v = (one.to("cuda", torch.bfloat16) for one in draw(8, 4, 64))
    one_each = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")
    used = torch.tensor([2, 3], dtype=torch.int32, device="cuda")
    out, _ = cuda_flash_attention(
        q[:2], k, v, bounds_q=one_each, bounds_k=one_each * 4, longest_q=1, longest_k=4, scale=SCALE, used_k=used
    )
    for row, (first, last) in enumerate(((0, 2), (4, 7))):
        hidden = torch.zeros(1, last - first, dtype=torch.bool, device="cuda")
        keys, values = (one[first:last].transpose(0, 1) for one in (k, v))
        expected, _ = definition(q[row : row + 1].transpose(0, 1), keys, values, hidden)
        torch.testing.assert_close(out[row : row + 1].transpose(0, 1).double(), expected, atol=0.03, rtol=0.03)

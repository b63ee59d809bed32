"""Patches of third-party packages, and calls into their private parts: one file for each package. It imports
`mill.api` and `mill.support`.

| file | what it touches | why | versions |
| --- | --- | --- | --- |
| `gguf.py` | replaces `GGUFReader` and `get_tensor_name_map` during a load | files are parsed three times | 0.16 to 0.19 |
| `mlx.py` | calls `mlx_lm.utils._download` | no public function returns a model's folder | 0.32 |
| `mlx.py` | passes `rope_theta`, `rope_scaling` to `load` | it ignores `rope_parameters` of transformers 5 | 0.32 |
| `ray.py` | replaces `ray._private.worker.print_to_stdstream` | it prints pages on standard output | 2.30 to 2.60 |
| `torch.py` | calls `aten._scaled_dot_product_flash_attention_for_cpu` | public ones return no log-sum-exp | 2.4 to 2.13 |
| `torch.py` | calls `aten._flash_attention_forward` | as above, for packed sequences | 2.4 to 2.13 |
| `transformers.py` | hides scikit-learn while transformers is imported | 2 s for an unused option | 4.56 to 5.17 |

Each file has a test in `tests/compat` that needs only its package. `scripts/check_compat.py` runs these tests in temporary
environments, with the oldest version that `pyproject.toml` allows and with the newest.
"""

"""The precisions that a model computes in, by the names that settings and options have for them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]
DTYPES: Mapping[str, torch.dtype] = MappingProxyType({"fp32": torch.float32, "bf16": torch.bfloat16})

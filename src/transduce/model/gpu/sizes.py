"""Compute launch sizes of Triton kernels."""

from functools import cache

import torch


def ceil_div(count: int, size: int) -> int:
    """Return count / size rounded up; Triton's own function is slower than some kernels."""
    return -(-count // size)


def power_of_2(least: int) -> int:
    """Return the smallest power of two that is at least `least`, a positive number."""
    return 1 << (least - 1).bit_length()


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory in bytes that a program may use; unlimited where Triton interprets kernels on a CPU."""
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)

"""Sizes of what is launched, and of what there is room for."""

from functools import cache

import torch


def ceil_div(count: int, size: int) -> int:
    """How many parts of this size hold so many; Triton's own takes longer than some programs."""
    return -(-count // size)


def power_of_2(least: int) -> int:
    """The smallest power of two that is at least this, which is positive."""
    return 1 << (least - 1).bit_length()


@cache
def shared_bytes(device: torch.device) -> int:
    """What the threads of one program may share; elsewhere than on a GPU, where programs are interpreted, enough."""
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)

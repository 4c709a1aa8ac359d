"""Embed a decoding step's tokens by one Triton kernel, if the model's embedding is a supported one.

Legend: B sentences, W hypotheses of each, D model width, V vocabulary size.
"""

from torch import Tensor

from transduce.model.embedding import Embedding
from transduce.model.gpu.programs import embedding as programs
from transduce.model.gpu.sizes import power_of_2
from transduce.model.positions import LearnedPositions, NoPositions, SinusoidalPositions


def embed_step(embedding: Embedding, pieces: Tensor, weight: Tensor, position: Tensor, room: int) -> Tensor:
    """Return the embeddings of tokens that are all at one position.

    Args:
        embedding: the model's embedding, which computes the result if the kernel does not support it.
        pieces: token ids, (B, W), contiguous.
        weight: the embedding matrix, (V, D).
        position: int64, (1,).
        room: the greatest number of positions.

    Returns:
        (B, W, D).
    """
    positions = embedding.positions
    table, offset = weight, 0
    if isinstance(positions, SinusoidalPositions):
        table, offset = positions.until(positions.offset + room, weight), positions.offset
    elif isinstance(positions, LearnedPositions):
        table, offset = positions.weight, positions.offset
    has_table = table is not weight
    is_supported = has_table or isinstance(positions, NoPositions)
    if (
        not is_supported
        or embedding.norm is not None
        or embedding.token_types is not None
        or table.dtype != weight.dtype
    ):
        limit = positions.length if isinstance(positions, LearnedPositions) else room
        return embedding(pieces, weight, position, end=min(room, limit))  # type: ignore[no-any-return]
    width = weight.shape[1]
    out = weight.new_empty(*pieces.shape, width)
    block = power_of_2(width)
    programs.embed[(pieces.numel(),)](
        pieces, weight, table, position, out, embedding.scale, offset, width, has_table, block,
        num_warps=min(4, max(1, block // 256)),
    )  # fmt: skip
    return out

"""Embeddings of a step's pieces in one program on a GPU, where the usual ones are asked for.

Legend: B sentences, W hypotheses of each, D model width, V vocabulary.
"""

from torch import Tensor

from transduce.model.embedding import Embedding
from transduce.model.gpu.programs import embedding as programs
from transduce.model.gpu.sizes import power_of_2
from transduce.model.positions import LearnedPositions, NoPositions, SinusoidalPositions


def embed_step(embedding: Embedding, pieces: Tensor, weight: Tensor, position: Tensor, room: int) -> Tensor:
    """The vectors of pieces that all stand at one position.

    Args:
        embedding: the model's.
        pieces: (B, W), contiguous.
        weight: the matrix, (V, D).
        position: int64, (1,).
        room: positions that there may be.

    Returns:
        (B, W, D).
    """
    positions = embedding.positions
    table, offset = weight, 0
    if isinstance(positions, SinusoidalPositions):
        table, offset = positions.until(positions.offset + room, weight), positions.offset
    elif isinstance(positions, LearnedPositions):
        table, offset = positions.weight, positions.offset
    placed = table is not weight
    known = placed or isinstance(positions, NoPositions)
    if not known or embedding.norm is not None or embedding.token_types is not None or table.dtype != weight.dtype:
        most = positions.length if isinstance(positions, LearnedPositions) else room
        return embedding(pieces, weight, position, end=min(room, most))  # type: ignore[no-any-return]
    width = weight.shape[1]
    out = weight.new_empty(*pieces.shape, width)
    block = power_of_2(width)
    programs.embed[(pieces.numel(),)](
        pieces, weight, table, position, out, embedding.scale, offset, width, placed, block,
        num_warps=min(4, max(1, block // 256)),
    )  # fmt: skip
    return out

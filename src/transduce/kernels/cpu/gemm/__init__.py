"""Matrix multiplication (GEMM) kernels for x86 processors, with terms that all files of this package use.

* Summed dimension: the dimension that left and right operand share, over which products are added.
* Tile: a block of the result that is computed in registers, some rows by some columns. `jit.tile.Tile` describes the
  tiles of decoding, `packing.GemmLayout` those of training.
* Tile register: one of AMX's eight registers of 16 rows of 64 bytes; a tile may take several of them.
* Micro-kernel: the emitted code that multiplies one tile.
* Packed operand: a copy of a matrix, in the order in which the micro-kernel reads its elements. Decoding packs
  weights once (prepacked weights), training packs operands at each call.
* Panel: a block of columns of a packed right operand.
* Pair: two bfloat16 neighbors along the summed dimension, stored as 32 bits, since one instruction multiplies both. In
  float32 a single number takes the place of a pair.
* Epilogue: the work on a tile's sums before they are stored, such as bias and ReLU.
"""

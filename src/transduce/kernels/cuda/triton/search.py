"""Select the next tokens from logits and update the hypotheses, so that search runs without the CPU.

Legend: B sentences, W hypotheses of each, V vocabulary size, K candidates per hypothesis, N finished hypotheses to
keep.
"""

import triton
import triton.language as tl


@triton.jit
def _load_logits(logits, bias, ids, exist, never, never_too, BIASED: tl.constexpr):
    """Return logits loaded as float32, plus a bias if BIASED.

    The result is -inf for the tokens `never` and `never_too`, for NaN, and where `exist` is false.
    """
    x = tl.load(logits + ids, mask=exist, other=float("-inf")).to(tl.float32)
    if BIASED:
        x += tl.load(bias + ids, mask=exist, other=0.0).to(tl.float32)
    return tl.where((ids == never) | (ids == never_too) | (x != x), float("-inf"), x)  # noqa: PLR0124


@triton.jit
def find_top_tokens(
    logits, bias, done, values, tokens, normalizers, maxima, length, position, vocabulary, width, never, never_too,
    BIASED: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr, MAX_CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Find the COUNT best tokens and the log-sum-exp of one row of logits per program, stored to buffers.

    A row is divided into chunks of BLOCK / CHUNKS logits. The best tokens are in the COUNT chunks with the greatest
    maxima, so only these chunks are searched. The program of row 0 also advances the step's counters `length` and
    `position`, for the kernels that follow. Rows of finished sentences are skipped.
    """
    row = tl.program_id(0)
    if row == 0:
        tl.store(length, tl.load(length) + width)
        tl.store(position, tl.load(position) + 1)
    if tl.load(done + row // width) != 0:
        return
    part: tl.constexpr = BLOCK // CHUNKS
    row_logits = logits + row.to(tl.int64) * vocabulary
    best = maxima + row * MAX_CHUNKS
    greatest = -1e38
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = _load_logits(row_logits, bias, ids, ids < vocabulary, never, never_too, BIASED)
        more = tl.maximum(greatest, tl.max(x, axis=0))
        total = total * tl.exp(greatest - more) + tl.sum(tl.exp(x - more), axis=0)
        greatest = more
        tl.store(best + start // part + tl.arange(0, CHUNKS), tl.max(tl.reshape(x, (CHUNKS, part)), axis=1))
    tl.store(normalizers + row, greatest + tl.log(total))
    tl.debug_barrier()
    ids = _best_chunks(best, tl.cdiv(vocabulary, BLOCK) * CHUNKS, vocabulary, COUNT, LANES, MAX_CHUNKS)
    ids = tl.reshape(ids[:, None] * part + tl.arange(0, part)[None, :], (LANES * part,))
    x = _load_logits(row_logits, bias, ids, ids < vocabulary, never, never_too, BIASED)
    numbers = tl.arange(0, LANES * part)
    for number in tl.static_range(COUNT):
        is_best = numbers == tl.argmax(x, axis=0)
        tl.store(values + row * COUNT + number, tl.max(x, axis=0))
        token = tl.sum(tl.where(is_best, ids, 0), axis=0)
        # The minimum is a valid id even if no logit is finite.
        tl.store(tokens + row * COUNT + number, tl.minimum(token, vocabulary - 1))
        x = tl.where(is_best, float("-inf"), x)


@triton.jit
def _best_chunks(best, chunks, vocabulary, COUNT: tl.constexpr, LANES: tl.constexpr, MAX_CHUNKS: tl.constexpr):
    """Return the indices of the COUNT chunks of a row of logits whose maxima, at `best`, are greatest.

    If there are fewer chunks, the result is filled with an index after the last chunk, so that nothing is read for it.
    """
    lanes, numbers = tl.arange(0, LANES), tl.arange(0, MAX_CHUNKS)
    remaining = tl.load(best + numbers, mask=numbers < chunks, other=float("-inf"))
    chosen = tl.full((LANES,), vocabulary, tl.int32)
    for number in tl.static_range(COUNT):
        exists = tl.max(remaining, axis=0) > float("-inf")  # argmax of only -inf would return chunk 0 again
        chunk = tl.argmax(remaining, axis=0)
        chosen = tl.where(lanes == number, tl.where(exists, chunk, vocabulary), chosen)
        remaining = tl.where(numbers == chunk, float("-inf"), remaining)
    return chosen


@triton.jit
def extend_greedy(
    values, best, normalizers, done, limits, tokens, history, records, counts, sources, remaining, position, sentences,
    eos, BLOCK: tl.constexpr,
):  # fmt: skip
    """Extend each unfinished sentence by its best token (greedy search), BLOCK sentences per program.

    A sentence is finished at the end symbol or at its length limit. `history` gets the token and the bits of its
    log-probability; `records` gets a finished sentence's length, and whether it was cut off. `remaining`, the number of
    unfinished sentences, is reduced by those that finish.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exist = rows < sentences
    live = exist & (tl.load(done + rows, mask=exist, other=1) == 0)
    length = tl.load(position).to(tl.int32)
    value = tl.load(values + rows, mask=live, other=0.0) - tl.load(normalizers + rows, mask=live, other=0.0)
    token = tl.load(best + rows, mask=live, other=0)
    entry = history + ((length - 1) * sentences + rows) * 3
    tl.store(entry, tl.zeros((BLOCK,), tl.int32), mask=live)
    tl.store(entry + 1, token, mask=live)
    tl.store(entry + 2, value.to(tl.int32, bitcast=True), mask=live)
    tl.store(tokens + rows, token.to(tl.int64), mask=live)
    leaves = live & ((token == eos) | (tl.load(limits + rows, mask=exist, other=0) <= length))
    tl.store(records + rows * 5, length + tl.zeros((BLOCK,), tl.int32), mask=leaves)
    tl.store(records + rows * 5 + 1, (leaves & (token != eos)).to(tl.int32), mask=leaves)
    tl.store(done + rows, leaves.to(tl.int32), mask=leaves)
    tl.store(counts + rows, tl.where(leaves, 0, length), mask=live)  # attention skips finished sentences
    tl.store(sources + rows, tl.zeros((BLOCK,), tl.int32), mask=leaves)
    tl.atomic_add(remaining, -tl.sum(leaves.to(tl.int32), axis=0))


@triton.jit
def extend_beam(
    values, best, normalizers, done, limits, reaches, penalties, scores, sums, tokens, history, records, finished,
    listed, counts, sources, remaining, length, position, sentences, capacity, eos,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, FOUND: tl.constexpr, WIDE: tl.constexpr, CANDIDATES: tl.constexpr,
    FINISHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Run one step of beam search for one sentence per program, as in `search/beam.py` and `search/selection.py`.

    Of the W best candidates, those with the end symbol are finished hypotheses, of which the N best are kept. The W
    best candidates without the end symbol live on. The sentence is done when no live hypothesis can enter the N best,
    or at its length limit.

    `records` gets the sentence's length, and whether it was cut off, once the sentence is done. For each of the N best
    finished hypotheses, `records` has three numbers: the step at which the hypothesis ended, the index of the live
    hypothesis that it extends, and the bits of the end symbol's log-probability.
    """
    sentence = tl.program_id(0)
    if tl.load(done + sentence) != 0:
        return
    step = tl.load(position).to(tl.int32)  # length of live hypotheses after this step
    first = sentence * WIDTH
    row = records + sentence * (2 + 3 * FOUND)
    penalty = tl.load(penalties + step)
    parents, newest, own_values, own_totals, own_sums, ends, end_ranks, end_values = _split_candidates(
        values + first * COUNT, best + first * COUNT, normalizers + first, scores + first, sums + first, penalty, eos,
        WIDTH, COUNT, WIDE, CANDIDATES,
    )  # fmt: skip
    threshold = _merge_finished(
        row + 2, finished + sentence * FOUND, step, ends, end_ranks, end_values, WIDTH, FOUND, WIDE, FINISHED
    )

    lanes = tl.arange(0, WIDE)
    exist = lanes < WIDTH
    entry = history + (((step - 1) * sentences + sentence) * WIDTH + lanes) * 3
    tl.store(entry, parents, mask=exist)
    tl.store(entry + 1, newest, mask=exist)
    tl.store(entry + 2, own_values.to(tl.int32, bitcast=True), mask=exist)
    best_total = tl.max(own_totals, axis=0)
    undecided = (best_total > float("-inf")) & (
        tl.div_rn(best_total, tl.load(reaches + sentence)) > threshold.to(tl.float32)
    )
    full = tl.load(limits + sentence) <= step
    if (undecided == 0) | full:
        tl.store(row, step)
        tl.store(row + 1, undecided.to(tl.int32))
        tl.store(done + sentence, 1)
        tl.store(counts + sentence, 0)  # attention skips finished sentences
        tl.store(sources + sentence, 0)
        tl.atomic_add(remaining, -1)
        return
    tl.store(tokens + first + lanes, newest.to(tl.int64), mask=exist)
    tl.store(scores + first + lanes, own_totals, mask=exist)
    tl.store(sums + first + lanes, own_sums, mask=exist)
    cached = tl.load(length).to(tl.int32)
    _update_cached_positions(
        listed + sentence.to(tl.int64) * capacity, counts + sentence, parents, lanes, exist, cached, WIDTH, BLOCK
    )


@triton.jit
def _split_candidates(
    values, best, normalizers, scores, sums, penalty, eos,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, WIDE: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Split a sentence's candidates into those that live on and those that end.

    Return eight tensors. The first five are of candidates that live on, best first: parents, tokens, log-probabilities,
    totals and float64 totals. The last three are of candidates that end: parents, scores and log-probabilities. Element
    n belongs to the n-th best candidate; its score is -inf if this candidate does not end.
    """
    numbers = tl.arange(0, CANDIDATES)
    owners = numbers // COUNT
    exist = numbers < WIDTH * COUNT
    token_ids = tl.load(best + numbers, mask=exist, other=0)
    logit = tl.load(values + numbers, mask=exist, other=float("-inf"))
    value = tl.where(logit > float("-inf"), logit - tl.load(normalizers + owners, mask=exist, other=0.0), logit)
    remaining_totals = tl.load(scores + owners, mask=exist, other=float("-inf")) + value
    float64_sums = tl.load(sums + owners, mask=exist, other=0.0) + value.to(tl.float64)
    lanes = tl.arange(0, WIDE)
    parents, newest, ends = tl.zeros((WIDE,), tl.int32), tl.zeros((WIDE,), tl.int32), tl.zeros((WIDE,), tl.int32)
    own_values, own_totals = tl.full((WIDE,), float("-inf"), tl.float32), tl.full((WIDE,), float("-inf"), tl.float32)
    own_sums, end_ranks = tl.full((WIDE,), 0.0, tl.float64), tl.full((WIDE,), float("-inf"), tl.float64)
    end_values = tl.full((WIDE,), 0.0, tl.float32)
    live = 0
    for number in tl.static_range(COUNT):
        hit = numbers == tl.argmax(remaining_totals, axis=0)
        total = tl.max(remaining_totals, axis=0)
        owner = tl.sum(tl.where(hit, owners, 0), axis=0)
        token = tl.sum(tl.where(hit, token_ids, 0), axis=0)
        token_value = tl.sum(tl.where(hit, value, 0.0), axis=0)
        candidate_sum = tl.sum(tl.where(hit, float64_sums, 0.0), axis=0)
        remaining_totals = tl.where(hit, float("-inf"), remaining_totals)
        exists = total > float("-inf")
        is_target = lanes == tl.where(exists & (token == eos), number, -1)
        ends = tl.where(is_target, owner, ends)
        end_ranks = tl.where(is_target, candidate_sum / penalty, end_ranks)
        end_values = tl.where(is_target, token_value, end_values)
        goes_on = exists & (token != eos)
        is_target = lanes == tl.where(goes_on, live, -1)
        parents, newest = tl.where(is_target, owner, parents), tl.where(is_target, token, newest)
        own_values, own_totals = tl.where(is_target, token_value, own_values), tl.where(is_target, total, own_totals)
        own_sums = tl.where(is_target, candidate_sum, own_sums)
        live += goes_on.to(tl.int32)
    return parents, newest, own_values, own_totals, own_sums, ends, end_ranks, end_values


@triton.jit
def _merge_finished(
    record, finished, step, ends, end_ranks, end_values,
    WIDTH: tl.constexpr, FOUND: tl.constexpr, WIDE: tl.constexpr, FINISHED: tl.constexpr,
):  # fmt: skip
    """Merge newly finished hypotheses into a sentence's list of the FOUND best, in memory; return the last one's score.

    The score is -inf if there are fewer than FOUND hypotheses. Among equal scores, older hypotheses come first.
    """
    slots, lanes = tl.arange(0, FINISHED), tl.arange(0, WIDE)
    is_kept = slots < FOUND
    ends_at = tl.load(record + slots * 3, mask=is_kept, other=0)
    ends_as = tl.load(record + 1 + slots * 3, mask=is_kept, other=0)
    ends_by = tl.load(record + 2 + slots * 3, mask=is_kept, other=0)
    rank = tl.load(finished + slots, mask=is_kept, other=float("-inf"))
    for number in tl.static_range(WIDTH):
        is_slot = slots == FOUND + number
        is_lane = lanes == number
        ends_at = tl.where(is_slot, step, ends_at)
        ends_as = tl.where(is_slot, tl.sum(tl.where(is_lane, ends, 0), axis=0), ends_as)
        value = tl.sum(tl.where(is_lane, end_values, 0.0), axis=0)
        ends_by = tl.where(is_slot, value.to(tl.int32, bitcast=True), ends_by)
        rank = tl.where(is_slot, tl.max(tl.where(is_lane, end_ranks, float("-inf")), axis=0), rank)
    threshold = tl.max(rank, axis=0)
    for number in tl.static_range(FOUND):
        threshold = tl.max(rank, axis=0)
        hit = slots == tl.where(threshold > float("-inf"), tl.argmax(rank, axis=0), -1)
        tl.store(finished + number, threshold)
        tl.store(record + number * 3, tl.sum(tl.where(hit, ends_at, 0), axis=0))
        tl.store(record + 1 + number * 3, tl.sum(tl.where(hit, ends_as, 0), axis=0))
        tl.store(record + 2 + number * 3, tl.sum(tl.where(hit, ends_by, 0), axis=0))
        rank = tl.where(hit, float("-inf"), rank)
    return threshold


@triton.jit
def _update_cached_positions(listed, count, parents, lanes, exist, cached, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Update a sentence's list of cached positions to which its hypotheses attend.

    Old positions are kept, and the newest positions are added, if live hypotheses descend from them. An entry of the
    list is 256 × position, plus a bit for each hypothesis that attends to the position.
    """
    count_before = tl.load(count)
    kept_count = 0
    for start in range(0, count_before, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        entries = tl.load(listed + columns, mask=columns < count_before, other=0)
        seen = exist[:, None] & (((entries[None, :] >> parents[:, None]) & 1) != 0)
        bits = tl.sum(tl.where(seen, 1 << lanes[:, None], 0), axis=0)
        stays = (bits != 0).to(tl.int32)
        targets = kept_count + tl.cumsum(stays, axis=0) - 1
        tl.debug_barrier()  # the block must be read before it is overwritten
        tl.store(listed + targets, (entries & -256) | bits, mask=stays != 0)
        kept_count += tl.sum(stays, axis=0)
    children = exist[:, None] & (parents[:, None] == lanes[None, :])
    bits = tl.sum(tl.where(children, 1 << lanes[:, None], 0), axis=0)
    stays = (bits != 0).to(tl.int32)
    targets = kept_count + tl.cumsum(stays, axis=0) - 1
    tl.debug_barrier()
    tl.store(listed + targets, ((cached - WIDTH + lanes) << 8) | bits, mask=stays != 0)
    tl.store(count, kept_count + tl.sum(stays, axis=0))

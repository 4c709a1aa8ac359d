/* An emulator of AMX for processors without it: each AMX instruction raises SIGILL, whose handler emulates it.
 *
 * Built by test_amx.py, for Linux on x86-64. It supports only what our kernels use: LDTILECFG, TILERELEASE, TILEZERO,
 * TILELOADD, TILELOADDT1, TILESTORED, TDPBUSD and TDPBF16PS with three-byte VEX prefixes (Intel, "Architecture
 * Instruction Set Extensions Programming Reference"). Other illegal instructions, and uses of a tile register that is
 * not configured, still end the process with SIGILL.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { THREADS = 64, REGISTERS = 8, ROWS = 16, BYTES = 64 };

typedef struct {
    int thread;
    int rows[REGISTERS], columns[REGISTERS];
    uint8_t bytes[REGISTERS][ROWS][BYTES];
} State;

static State states[THREADS];
static long done;

static State *own_state(void) {
    int thread = (int)syscall(SYS_gettid);
    for (int i = 0; i < THREADS; i++) {
        int nobody = 0;
        if (__atomic_load_n(&states[i].thread, __ATOMIC_ACQUIRE) == thread ||
            __atomic_compare_exchange_n(&states[i].thread, &nobody, thread, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return &states[i];
    }
    return 0;
}

static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* Decodes a ModRM operand at `at`: its address without the index, and its scaled index. Returns the operand's bytes. */
static int decode(const uint8_t *at, int x, int b, const greg_t *registers, uint8_t **base, int64_t *index) {
    int mode = at[0] >> 6, which = at[0] & 7, length = 1;
    *index = 0;
    *base = 0;
    if (which == 4) {
        int scale = at[1] >> 6, number = ((at[1] >> 3) & 7) | x << 3;
        which = at[1] & 7;
        length = 2;
        if (number != 4)
            *index = (int64_t)((uint64_t)registers[places[number]] << scale);
        if (which == 5 && mode == 0) {
            int32_t far_away;
            memcpy(&far_away, at + 2, 4);
            *base = (uint8_t *)(intptr_t)far_away;
            return 6;
        }
    } else if (which == 5 && mode == 0) { /* relative to the next instruction */
        int32_t far_away;
        memcpy(&far_away, at + 1, 4);
        *base = (uint8_t *)at + 5 + far_away;
        return 5;
    }
    *base = (uint8_t *)registers[places[which | b << 3]];
    if (mode == 1) {
        *base += (int8_t)at[length];
        length += 1;
    } else if (mode == 2) {
        int32_t far_away;
        memcpy(&far_away, at + length, 4);
        *base += far_away;
        length += 4;
    }
    return length;
}

static int is_valid(const State *s, int number) { return number < REGISTERS && s->rows[number] > 0; }

static int configure(State *s, const uint8_t *from) {
    if (from[0] != 1)
        return 0;
    memset(s->bytes, 0, sizeof s->bytes);
    for (int i = 0; i < REGISTERS; i++) {
        s->columns[i] = from[16 + 2 * i] | from[17 + 2 * i] << 8;
        s->rows[i] = from[48 + i];
        if (s->columns[i] > BYTES || s->rows[i] > ROWS)
            return 0;
    }
    return 1;
}

/* Adds the products of unsigned and signed bytes to the tile of 32-bit sums, all columns of a row at once. */
static int multiply(State *s, int sum, int unsigned_bytes, int signed_bytes) {
    if (!is_valid(s, sum) || !is_valid(s, unsigned_bytes) || !is_valid(s, signed_bytes))
        return 0;
    int32_t factors[4][ROWS][BYTES / 4];
    int groups = s->columns[unsigned_bytes] / 4, columns = s->columns[sum] / 4;
    for (int k = 0; k < groups; k++)
        for (int n = 0; n < BYTES / 4; n++)
            for (int i = 0; i < 4; i++)
                factors[i][k][n] = (int8_t)s->bytes[signed_bytes][k][4 * n + i];
    for (int m = 0; m < s->rows[sum]; m++) {
        uint32_t totals[BYTES / 4];
        memcpy(totals, s->bytes[sum][m], sizeof totals);
        for (int k = 0; k < groups; k++)
            for (int i = 0; i < 4; i++) {
                int32_t factor = s->bytes[unsigned_bytes][m][4 * k + i];
                for (int n = 0; n < columns; n++)
                    totals[n] += (uint32_t)(factor * factors[i][k][n]);
            }
        memcpy(s->bytes[sum][m], totals, sizeof totals);
    }
    return 1;
}

/* Widens a bfloat16 number: its bits are the upper half of a float's. */
static float widen(const uint8_t *bfloat16) {
    uint32_t bits = (uint32_t)(bfloat16[0] | bfloat16[1] << 8) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Sums the products of the pairs' first elements and those of their second elements, then adds both to the tile.
 * All columns of a row are summed at once, which the compiler makes vector instructions of. */
static int multiply_pairs(State *s, int sum, int one, int other) {
    if (!is_valid(s, sum) || !is_valid(s, one) || !is_valid(s, other))
        return 0;
    float factors[2][ROWS][BYTES / 4];
    int pairs = s->columns[one] / 4, columns = s->columns[sum] / 4;
    for (int k = 0; k < pairs; k++)
        for (int n = 0; n < BYTES / 4; n++)
            for (int i = 0; i < 2; i++)
                factors[i][k][n] = widen(&s->bytes[other][k][4 * n + 2 * i]);
    for (int m = 0; m < s->rows[sum]; m++) {
        float totals[2][BYTES / 4] = {{0.0f}}, found[BYTES / 4];
        for (int k = 0; k < pairs; k++)
            for (int i = 0; i < 2; i++) {
                float factor = widen(&s->bytes[one][m][4 * k + 2 * i]);
                for (int n = 0; n < BYTES / 4; n++)
                    totals[i][n] += factor * factors[i][k][n];
            }
        memcpy(found, s->bytes[sum][m], sizeof found);
        for (int n = 0; n < columns; n++)
            found[n] += totals[0][n] + totals[1][n];
        memcpy(s->bytes[sum][m], found, sizeof found);
    }
    return 1;
}

/* Emulates the instruction at RIP; returns its length in bytes, or 0 if it is not a supported one. */
static int run(greg_t *registers) {
    const uint8_t *at = (const uint8_t *)registers[REG_RIP];
    State *s = own_state();
    if (!s || at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0)
        return 0;
    int x = !(at[1] & 0x40), b = !(at[1] & 0x20), prefix = at[2] & 3, third = (~at[2] >> 3) & 15;
    int code = at[3], direct = at[4] >> 6 == 3, number = (at[4] >> 3) & 7;
    if (code == 0x49 && prefix == 0 && at[4] == 0xC0) {
        memset(s->rows, 0, sizeof s->rows);
        return 5;
    }
    if (code == 0x49 && prefix == 3 && direct && is_valid(s, number)) {
        memset(s->bytes[number], 0, sizeof s->bytes[number]);
        return 5;
    }
    if (code == 0x5E && prefix == 1 && direct)
        return multiply(s, number, at[4] & 7, third) ? 5 : 0;
    if (code == 0x5C && prefix == 2 && direct)
        return multiply_pairs(s, number, at[4] & 7, third) ? 5 : 0;
    if (direct || (code != 0x49 && code != 0x4B))
        return 0;
    uint8_t *base;
    int64_t stride;
    int length = 4 + decode(at + 4, x, b, registers, &base, &stride);
    if (code == 0x49 && prefix == 0)
        return configure(s, base + stride) ? length : 0;
    int loads = prefix == 3 || prefix == 1; /* prefix 1: TILELOADDT1, a hint not to keep the data in L1 */
    if (code != 0x4B || (prefix != 2 && !loads) || (at[4] & 7) != 4 || !is_valid(s, number))
        return 0;
    for (int m = 0; m < s->rows[number]; m++) {
        if (loads) {
            memcpy(s->bytes[number][m], base + m * stride, s->columns[number]);
        } else {
            memcpy(base + m * stride, s->bytes[number][m], s->columns[number]);
        }
    }
    return length;
}

/* Emulates the instruction that raised the signal, and those directly behind it, each of which would raise another. */
static void handle(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int count = 0;
    (void)info;
    for (int length; (length = run(registers)) != 0; count++)
        registers[REG_RIP] += length;
    if (count == 0)
        signal(signal_number, SIG_DFL);
    __atomic_add_fetch(&done, count, __ATOMIC_RELAXED);
}

int install_amx(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return sigaction(SIGILL, &action, 0);
}

long instructions_done(void) { return __atomic_load_n(&done, __ATOMIC_RELAXED); }

/* The named problems: one row each. Where the point of a row is not a width or a type, it is f32 and 64 wide, so that
 * kernels that are compiled for widths and types are compiled seldom. */
#include "problems.h"

#include "rng.h"

#include <stdio.h>
#include <string.h>

/* A table. */
/* clang-format off */
#define B(n)          .batch = (n)
#define HEADS(h, g)   .heads = (h), .kv_heads = (g)
#define LEN(q, kv)    .len_q = (q), .len_kv = (kv)
#define DIM(qk)       .dim_qk = (qk)
#define DIMS(qk, v)   .dim_qk = (qk), .dim_v = (v)
#define TYPES(q, kv, o) .q_type = VKATTN_##q, .kv_type = VKATTN_##kv, .o_type = VKATTN_##o
#define ALL(type)     TYPES(type, type, type)
#define LSE           VKATTN_WRITE_LSE
#define WEIGHTS       VKATTN_WRITE_WEIGHTS
#define TOP_LEFT      .align = VKATTN_TOP_LEFT
#define BOTTOM_RIGHT  .align = VKATTN_BOTTOM_RIGHT
#define BYTES(meaning) .mask_kind = VKATTN_MASK_BYTES, .mask_true = VKATTN_TRUE_##meaning
#define BITS(meaning) .mask_kind = VKATTN_MASK_BITS, .mask_true = VKATTN_TRUE_##meaning
#define STRIDES(b, h, r) {VKATTN_STRIDED, b, h, r}
#define EVERY_BTHD    .q = {.order = VKATTN_BTHD}, .k = {.order = VKATTN_BTHD}, .v = {.order = VKATTN_BTHD}, \
                      .o = {.order = VKATTN_BTHD}

#define ROW(row_name, row_about, ...) .name = row_name, .about = row_about, .problem = {__VA_ARGS__}

/* "CASES n": a fault that users of another implementation reported. */
static const struct check_problem rows[] = {
    {ROW("plain", "the defaults of everything", LEN(17, 35), DIM(64))},
    {ROW("one", "a single element of everything", LEN(1, 1), DIM(1), .flags = LSE | WEIGHTS)},

    /* ---- Widths; the types vary with them ---- */
    {ROW("dim/1", NULL, HEADS(2, 2), LEN(17, 70), DIM(1), TYPES(F16, F16, F16), .flags = LSE)},
    {ROW("dim/2", NULL, HEADS(2, 2), LEN(17, 70), DIM(2), TYPES(F16, F32, BF16), .flags = LSE)},
    {ROW("dim/3", "16-bit rows begin inside a word", HEADS(2, 2), LEN(17, 70), DIM(3), ALL(F16), .flags = LSE)},
    {ROW("dim/8", NULL, HEADS(2, 2), LEN(17, 70), DIM(8), TYPES(F32, BF16, F16), .flags = LSE)},
    {ROW("dim/32", NULL, HEADS(2, 2), LEN(17, 70), DIM(32), TYPES(F32, F16, F16), .flags = LSE)},
    {ROW("dim/40", "CASES 12", LEN(32, 1024), DIM(40), TYPES(F16, F32, F16), .flags = LSE)},
    {ROW("dim/40-rows", "CASES 12", LEN(64, 2048), DIM(40), TYPES(F16, F32, F16), .flags = LSE)},
    {ROW("dim/59", "odd rows of bf16", HEADS(2, 2), LEN(17, 70), DIM(59), TYPES(F32, BF16, BF16), .flags = LSE)},
    {ROW("dim/64", NULL, HEADS(2, 2), LEN(70, 131), DIM(64), .flags = LSE)},
    {ROW("dim/72", "CASES 12", LEN(32, 1024), DIM(72), TYPES(BF16, F32, F16), .flags = LSE)},
    {ROW("dim/72-rows", "CASES 12", LEN(64, 2048), DIM(72), TYPES(BF16, F32, F16), .flags = LSE)},
    {ROW("dim/80", "CASES 12", LEN(16, 2048), DIM(80), TYPES(F16, BF16, F32), .flags = LSE)},
    {ROW("dim/80-rows", "CASES 12", LEN(64, 1024), DIM(80), TYPES(F16, BF16, F32), .flags = LSE)},
    {ROW("dim/96", NULL, HEADS(2, 2), LEN(17, 70), DIM(96), TYPES(BF16, F16, F32), .flags = LSE)},
    {ROW("dim/111", "odd rows of f16", HEADS(2, 2), LEN(17, 70), DIM(111), TYPES(F16, F16, BF16), .flags = LSE)},
    {ROW("dim/128", "CASES 8", HEADS(32, 8), LEN(1, 77), DIM(128), TYPES(F32, F16, F32), .flags = LSE)},
    {ROW("dim/128-rows", "CASES 8", HEADS(32, 8), LEN(64, 16), DIM(128), TYPES(F32, F16, F32), .flags = LSE)},
    {ROW("dim/160", NULL, HEADS(2, 2), LEN(17, 70), DIM(160), TYPES(BF16, F32, BF16), .flags = LSE)},
    {ROW("dim/192", NULL, HEADS(2, 2), LEN(17, 70), DIM(192), TYPES(BF16, BF16, F32), .flags = LSE)},
    {ROW("dim/256", "CASES 9", HEADS(8, 4), LEN(1, 77), DIM(256), .flags = LSE)},
    {ROW("dim/256-long", "CASES 12", LEN(8, 2048), DIM(256), .flags = LSE)},
    {ROW("dim/256-f16", "CASES 10", HEADS(16, 4), LEN(5, 37), DIM(256), TYPES(F32, F16, BF16), .flags = LSE)},
    {ROW("dim/256-decode", "CASES 10", HEADS(16, 4), LEN(1, 37), DIM(256), TYPES(F32, F16, BF16), .flags = LSE)},
    {ROW("dim/320", NULL, HEADS(2, 2), LEN(9, 40), DIM(320), TYPES(BF16, F16, BF16), .flags = LSE)},
    {ROW("dim/512", NULL, HEADS(2, 2), LEN(9, 40), DIM(512), TYPES(F16, BF16, F16), .flags = LSE)},
    {ROW("dim/576", NULL, LEN(9, 40), DIM(576), TYPES(F32, BF16, F32), .flags = LSE | WEIGHTS)},
    {ROW("dim/64-32", "a narrower V", HEADS(2, 2), LEN(17, 70), DIMS(64, 32), TYPES(F16, F32, F32), .flags = LSE)},
    {ROW("dim/3-5", "a wider V, odd rows", HEADS(2, 1), LEN(17, 70), DIMS(3, 5), TYPES(F16, BF16, BF16), .flags = LSE)},
    {ROW("dim/192-128", NULL, HEADS(2, 1), LEN(17, 70), DIMS(192, 128), TYPES(BF16, BF16, F16), .flags = LSE)},
    {ROW("dim/1-576", NULL, LEN(9, 70), DIMS(1, 576), TYPES(F32, F32, BF16), .flags = LSE)},
    {ROW("dim/latent", "latent attention: V is the first 512 elements of K's rows",
     HEADS(16, 1), LEN(2, 65), DIMS(576, 512), TYPES(F32, F16, F32), .flags = LSE), .sharing = SHARE_KV},

    /* ---- The types that no width above has ---- */
    {ROW("type/f16", NULL, HEADS(4, 2), LEN(33, 77), DIM(64), ALL(F16), .flags = LSE)},
    {ROW("type/bf16", NULL, HEADS(4, 2), LEN(33, 77), DIM(64), ALL(BF16), .flags = LSE)},
    {ROW("type/f32-f32-f16", NULL, HEADS(4, 2), LEN(33, 77), DIM(64), TYPES(F32, F32, F16), .flags = LSE)},
    {ROW("type/f16-f16-f32", NULL, HEADS(4, 2), LEN(33, 77), DIM(64), TYPES(F16, F16, F32), .flags = LSE)},
    {ROW("type/bf16-f32-f32", NULL, HEADS(4, 2), LEN(33, 77), DIM(8), TYPES(BF16, F32, F32), .flags = LSE)},
    {ROW("type/bf16-f16-f16", NULL, HEADS(4, 2), LEN(33, 77), DIM(8), TYPES(BF16, F16, F16), .flags = LSE)},

    /* ---- Lengths and heads ---- */
    {ROW("len/no-keys", "Tk = 0: zeros and -infinity", B(2), HEADS(2, 2), LEN(5, 0), DIM(64), .flags = LSE | WEIGHTS)},
    {ROW("len/no-queries", "Tq = 0: nothing is written",
     B(2), HEADS(2, 2), LEN(0, 5), DIM(64), .flags = LSE | WEIGHTS)},
    {ROW("len/nothing", "Tq = Tk = 0", HEADS(2, 2), DIM(64), .flags = LSE)},
    {ROW("len/1-1", NULL, HEADS(2, 2), LEN(1, 1), DIM(64), .flags = LSE)},
    {ROW("len/2-64", "CASES 13", LEN(2, 64), DIM(64), .flags = LSE)},
    {ROW("len/3-1023", "a prime and a little less than a power", LEN(3, 1023), DIM(64), .flags = LSE)},
    {ROW("len/17-19", "CASES 24", LEN(17, 19), DIM(64), .flags = LSE)},
    {ROW("len/129-127", NULL, LEN(129, 127), DIM(64), .flags = LSE)},
    {ROW("len/300-5", "more queries than keys", LEN(300, 5), DIM(64), .flags = LSE)},
    {ROW("gqa/3", NULL, B(2), HEADS(6, 2), LEN(7, 33), DIM(64), .flags = LSE)},
    {ROW("gqa/5", NULL, B(2), HEADS(10, 2), LEN(7, 33), DIM(64), .flags = LSE)},
    {ROW("gqa/7", NULL, HEADS(14, 2), LEN(7, 33), DIM(64), .flags = LSE)},
    {ROW("gqa/8", NULL, HEADS(16, 2), LEN(7, 33), DIM(64), .flags = LSE)},
    {ROW("gqa/mqa", "one head of keys", B(2), HEADS(8, 1), LEN(7, 33), DIM(64), .flags = LSE)},
    {ROW("many/heads", "more than 65,535 (batch, head) pairs",
         B(100), HEADS(660, 110), LEN(1, 2), DIM(1), .flags = LSE), .once = true},
    {ROW("many/rows", "more than 65,535 row blocks, the later ones past all keys",
         LEN(66000, 3), DIM(1), .flags = LSE | VKATTN_CAUSAL | VKATTN_LEFT, .left = 40000, TOP_LEFT), .once = true},

    /* ---- Layouts ---- */
    {ROW("layout/bthd", "CASES 42", B(2), HEADS(3, 3), LEN(3, 3), DIM(64), EVERY_BTHD, .flags = LSE)},
    {ROW("layout/bthd-f16", "CASES 44", HEADS(2, 1), LEN(64, 1025), DIM(64), ALL(F16), EVERY_BTHD, .flags = LSE)},
    {ROW("layout/packed", "the three parts of [B,T,3,H,d] in place",
     B(2), HEADS(3, 3), LEN(21, 21), DIM(64), .flags = LSE),
     .sharing = SHARE_PACKED},
    {ROW("layout/packed-gqa-f16", NULL, B(2), HEADS(4, 2), LEN(21, 21), DIM(64), ALL(F16), .flags = LSE),
     .sharing = SHARE_PACKED},
    {ROW("layout/packed-odd-f16", "rows that begin inside words",
     HEADS(3, 3), LEN(21, 21), DIM(3), ALL(F16), .flags = LSE),
     .sharing = SHARE_PACKED},
    {ROW("layout/one-k", "K and V broadcast over batch and heads",
     B(3), HEADS(2, 2), LEN(5, 37), DIM(64), .k = STRIDES(0, 0, 64), .v = STRIDES(0, 0, 64), .flags = LSE)},
    {ROW("layout/one-key", "K and V broadcast over the keys",
     HEADS(2, 2), LEN(5, 37), DIM(64), .k = STRIDES(0, 64, 0), .v = STRIDES(0, 64, 0), .flags = LSE)},
    {ROW("layout/one-query", "Q broadcast over everything",
     B(2), HEADS(2, 2), LEN(5, 37), DIM(64), .q = STRIDES(0, 0, 0), .flags = LSE)},
    {ROW("layout/odd", "odd strides of everything",
     B(2), HEADS(2, 2), LEN(5, 19), DIM(64), .q = STRIDES(5 * 135 + 1, 67, 135), .k = STRIDES(2801, 1401, 71),
      .v = STRIDES(2701, 65, 133), .o = STRIDES(333, 701, 67), .lse = STRIDES(3, 7, 14),
      .weights = STRIDES(21, 43, 87), .flags = LSE | WEIGHTS)},
    {ROW("layout/odd-f16", "f16 rows that begin inside words",
     B(2), HEADS(2, 2), LEN(5, 19), DIM(64), ALL(F16), .q = STRIDES(5 * 135 + 1, 67, 135),
      .k = STRIDES(2801, 1401, 71), .v = STRIDES(2701, 65, 133), .o = STRIDES(333, 701, 67),
      .lse = STRIDES(3, 7, 14), .flags = LSE)},
    {ROW("layout/shared-words", "dense rows of 3 f16: neighbours of other heads share the words of O",
     B(2), HEADS(5, 5), LEN(7, 19), DIM(3), ALL(F16), EVERY_BTHD, .flags = LSE)},

    /* ---- Scores ---- */
    {ROW("scale/large", NULL, LEN(9, 70), DIM(64), .scale = 1, .flags = LSE)},
    {ROW("scale/tiny", "nearly uniform", LEN(9, 70), DIM(64), .scale = 1e-6f, .flags = LSE)},
    {ROW("scale/negative", NULL, LEN(9, 70), DIM(64), .scale = -0.25f, .flags = LSE | WEIGHTS)},
    {ROW("scores/large", "up to +-60: saturated, and beyond what exp takes in f16",
     LEN(9, 70), DIM(64), .flags = LSE | WEIGHTS), .scores = SCORES_LARGE},
    {ROW("scores/large-f16", NULL, LEN(9, 70), DIM(64), ALL(F16), .flags = LSE), .scores = SCORES_LARGE},
    {ROW("scores/huge", "near the range of f32", LEN(9, 70), DIM(64), .flags = LSE | WEIGHTS), .scores = SCORES_HUGE},
    {ROW("scores/huge-f16", "raw scores far beyond 65,504", LEN(9, 70), DIM(64), ALL(F16), .flags = LSE),
     .scores = SCORES_HUGE},
    {ROW("scores/dominant", "the last key outweighs all",
     LEN(9, 170), DIM(64), .flags = LSE), .scores = SCORES_DOMINANT},
    {ROW("scores/subnormal", "f16 subnormals are numbers",
     LEN(9, 70), DIM(64), TYPES(F16, F16, F32), .scale = 0x1p36f, .flags = LSE), .scores = SCORES_SUBNORMAL,
     .values = VALUES_SUBNORMAL},
    {ROW("scores/nan-key", "a NaN key that one row alone sees",
     LEN(33, 70), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS),
     .scores = SCORES_NAN_KEY, .mask = MASK_ONE_ROW},
    {ROW("scores/nan-key-causal", "rows from it on are NaN",
     B(2), HEADS(2, 1), LEN(40, 40), DIM(64), .flags = LSE | VKATTN_CAUSAL, TOP_LEFT), .scores = SCORES_NAN_KEY},
    {ROW("scores/nan-query", "its row alone is NaN", HEADS(2, 2), LEN(9, 70), DIM(64), .flags = LSE | WEIGHTS),
     .scores = SCORES_NAN_QUERY},
    {ROW("scores/infinite", "+inf: the row is NaN; -inf: no weight", LEN(33, 70), DIM(64), .flags = LSE | WEIGHTS),
     .scores = SCORES_INFINITE},
    {ROW("scores/no-finite", "visible scores that are all -inf: NaN", LEN(9, 70), DIM(64), .flags = LSE | WEIGHTS),
     .scores = SCORES_NO_FINITE},
    {ROW("scores/uniform-200", "CASES 14: exactly 200", LEN(8, 4096), DIM(64), .flags = LSE), .scores = SCORES_ZERO,
     .values = VALUES_CONSTANT, .constant = 200},
    {ROW("scores/uniform-f16", "CASES 14 in f16", LEN(8, 4096), DIM(64), ALL(F16), .flags = LSE), .scores = SCORES_ZERO,
     .values = VALUES_CONSTANT, .constant = 200},
    {ROW("scores/uniform-long", "CASES 15: exactly 5", LEN(2, 65536), DIM(1), TYPES(F16, F16, F16), .flags = LSE),
     .scores = SCORES_ZERO, .values = VALUES_CONSTANT, .constant = 5},
    {ROW("scores/uniform-drift", "0.3 has no exact sum: a plain one drifts", LEN(2, 8192), DIM(64), .flags = LSE),
     .scores = SCORES_ZERO, .values = VALUES_CONSTANT, .constant = 0.3f},
    {ROW("scores/uniform-drift-long", "further", LEN(2, 65536), DIM(4), .flags = LSE),
     .scores = SCORES_ZERO, .values = VALUES_CONSTANT, .constant = 0.3f},
    {ROW("fold/mask", "accumulators are folded, and some keys hidden",
     HEADS(4, 2), LEN(3, 5000), DIM(8), BYTES(ATTENDS), .flags = LSE)},
    {ROW("fold/nan", "a NaN value that one row alone sees, among many keys",
     LEN(5, 5000), DIM(8), BYTES(ATTENDS), .flags = LSE), .values = VALUES_NAN, .mask = MASK_ONE_ROW},
    {ROW("fold/nan-f16", NULL, LEN(5, 5000), DIM(8), ALL(F16), BYTES(ATTENDS), .flags = LSE),
     .values = VALUES_NAN, .mask = MASK_ONE_ROW},
    {ROW("fold/causal", "rows that end on both sides of a fold",
     HEADS(4, 2), LEN(70, 4200), DIM(8), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL)},
    {ROW("fold/uneven", "a last chunk that is not whole",
     LEN(3, 5000), .dim_qk = 5, .dim_v = 7, ALL(BF16), .flags = LSE)},
    {ROW("values/one-hot", "CASES 46: each of 32 keys counts",
     LEN(3, 32), DIM(64), .flags = LSE), .scores = SCORES_ZERO,
     .values = VALUES_ONE_HOT},
    {ROW("values/one-hot-long", NULL, LEN(5, 1000), DIM(64), .flags = LSE), .values = VALUES_ONE_HOT},
    {ROW("values/overflow-f16", "outputs on both sides of 65,504",
     LEN(33, 7), DIM(64), TYPES(F32, F32, F16), .flags = LSE),
     .scores = SCORES_LARGE, .values = VALUES_LARGE},
    {ROW("values/nan", "a NaN value that one row alone sees", LEN(33, 70), DIM(64), BYTES(ATTENDS), .flags = LSE),
     .values = VALUES_NAN, .mask = MASK_ONE_ROW},
    {ROW("values/infinite", "an infinite one", LEN(33, 70), DIM(64), BYTES(ATTENDS), .flags = LSE),
     .values = VALUES_INFINITE, .mask = MASK_ONE_ROW},
    {ROW("values/nan-causal", "rows before it are clean",
     HEADS(2, 2), LEN(70, 70), DIM(64), .flags = LSE | VKATTN_CAUSAL, TOP_LEFT), .values = VALUES_NAN},

    {ROW("softcap/applied", "CASES 36: 10 and 0 become 4.82 and 0",
     LEN(2, 2), DIM(64), .scale = 1, .softcap = 5, .flags = LSE | WEIGHTS), .scores = SCORES_STEP},
    {ROW("softcap/near", "scores around the cap", LEN(9, 70), DIM(64), .softcap = 1.5f, .flags = LSE | WEIGHTS)},
    {ROW("softcap/above", "scores far above it",
     LEN(9, 70), DIM(64), .softcap = 8, .flags = LSE), .scores = SCORES_LARGE},
    {ROW("softcap/huge-scores", "tanh where exp overflows", LEN(9, 70), DIM(64), .softcap = 30, .flags = LSE),
     .scores = SCORES_HUGE},
    {ROW("softcap/high", "a cap that hardly bends", LEN(9, 70), DIM(64), .softcap = 5000, .flags = LSE)},
    {ROW("softcap/mask", "CASES 35: hidden keys stay hidden",
     LEN(5, 40), DIM(64), .softcap = 1, BYTES(ATTENDS), .flags = LSE | WEIGHTS), .scores = SCORES_ZERO,
     .mask = MASK_FIRST_HALF},
    {ROW("softcap/alibi", "the cap comes before what is added",
     HEADS(8, 8), LEN(9, 40), DIM(64), .softcap = 1, .flags = LSE | VKATTN_ALIBI, TOP_LEFT), .scores = SCORES_LARGE},

    {ROW("alibi/top-left", NULL, HEADS(8, 2), LEN(19, 40), DIM(64), .flags = LSE | VKATTN_ALIBI, TOP_LEFT)},
    {ROW("alibi/bottom-right", NULL, HEADS(8, 2), LEN(19, 40), DIM(64), .flags = LSE | VKATTN_ALIBI, BOTTOM_RIGHT)},
    {ROW("alibi/lengths", "each member has its own alignment",
     B(8), HEADS(2, 2), LEN(7, 20), DIM(64), BOTTOM_RIGHT,
      .flags = LSE | VKATTN_ALIBI | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS)},

    {ROW("sink/normal", NULL, HEADS(4, 2), LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_SINKS)},
    {ROW("sink/by-head", "CASES 37: n / (n + e^s)", HEADS(4, 4), LEN(3, 20), DIM(64), .flags = LSE | VKATTN_SINKS),
     .scores = SCORES_ZERO, .values = VALUES_CONSTANT, .constant = 1, .sinks = SINKS_LOG},
    {ROW("sink/extreme", "0, -inf, 80, -80", HEADS(4, 4), LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_SINKS),
     .sinks = SINKS_MIXED},
    {ROW("sink/empty-rows", "LSE is the sink's logit where nothing is visible",
     HEADS(4, 4), LEN(9, 40), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS | VKATTN_SINKS), .mask = MASK_ROWS,
     .sinks = SINKS_MIXED},
    {ROW("sink/no-keys", "Tk = 0", HEADS(4, 4), LEN(9, 0), DIM(64), .flags = LSE | VKATTN_SINKS), .sinks = SINKS_MIXED},
    {ROW("sink/infinite", "NaN where something is visible",
         HEADS(2, 2), LEN(9, 40), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS | VKATTN_SINKS),
     .mask = MASK_ROWS, .sinks = SINKS_INFINITE},
    {ROW("sink/base-2", NULL, HEADS(4, 4), LEN(9, 40), DIM(64), .flags = LSE | VKATTN_LSE_BASE_2 | VKATTN_SINKS)},

    /* ---- Bias ---- */
    {ROW("bias/f32", NULL, B(2), HEADS(2, 2), LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS)},
    {ROW("bias/f16", "odd rows",
     HEADS(2, 2), LEN(9, 41), DIM(64), .bias_type = VKATTN_F16, .flags = LSE | VKATTN_BIAS)},
    {ROW("bias/bf16", "odd rows",
     HEADS(2, 2), LEN(9, 41), DIM(64), .bias_type = VKATTN_BF16, .flags = LSE | VKATTN_BIAS)},
    {ROW("bias/broadcast", "CASES 47: [1,1,Tq,Tk]",
     B(2), HEADS(2, 2), LEN(9, 40), DIM(64), .bias = STRIDES(0, 0, 40), .flags = LSE | VKATTN_BIAS)},
    {ROW("bias/one-row", "broadcast over the rows",
     B(2), HEADS(2, 2), LEN(9, 40), DIM(64), .bias = STRIDES(80, 40, 0), .flags = LSE | VKATTN_BIAS),
     .bias = BIAS_HOLES},
    {ROW("bias/first-tile", "CASES 1: the first tiles are -inf, one query",
     LEN(1, 64), DIM(64), .flags = LSE | VKATTN_BIAS), .bias = BIAS_LAST_HALF},
    {ROW("bias/first-tiles", NULL, LEN(9, 300), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS), .bias = BIAS_LAST_HALF},
    {ROW("bias/holes", "-inf hides a key", HEADS(2, 2), LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_HOLES},
    {ROW("bias/holes-f16", "in f16",
     HEADS(2, 2), LEN(9, 40), DIM(64), .bias_type = VKATTN_F16, .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_HOLES},
    {ROW("bias/holes-nan-keys", "-inf is selected, not added: the middle key is NaN",
     LEN(9, 40), DIM(64), .flags = LSE | VKATTN_BIAS), .scores = SCORES_NAN_KEY, .bias = BIAS_HOLES},
    {ROW("bias/rows", "rows that are -inf throughout", LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_ROWS},
    {ROW("bias/rows-sink", NULL, HEADS(4, 4), LEN(9, 40), DIM(64), .flags = LSE | VKATTN_BIAS | VKATTN_SINKS),
     .bias = BIAS_ROWS, .sinks = SINKS_MIXED},
    {ROW("bias/lowest", "the lowest finite value is a score like any other",
     LEN(9, 40), DIM(64), .flags = LSE | VKATTN_BIAS),
     .scores = SCORES_ZERO, .bias = BIAS_LOWEST},
    {ROW("bias/lowest-mask", "one visible key of four, at the lowest score: weight 1, not 0.25",
     LEN(2, 4), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS | VKATTN_BIAS), .scores = SCORES_ZERO,
     .mask = MASK_LAST_KEY, .bias = BIAS_LOWEST},
    {ROW("bias/mixed", "lowest values among others", LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_MIXED},
    {ROW("bias/mixed-f16", NULL, LEN(9, 40), DIM(64), .bias_type = VKATTN_F16, .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_MIXED},
    {ROW("bias/mixed-bf16", NULL, LEN(9, 40), DIM(64), .bias_type = VKATTN_BF16, .flags = LSE | VKATTN_BIAS),
     .bias = BIAS_MIXED},
    {ROW("bias/large", "+-10,000", LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS), .bias = BIAS_LARGE},
    {ROW("bias/infinite", "+inf: its row alone is NaN", LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_INFINITE},
    {ROW("bias/nan", "NaN: its row alone is NaN", LEN(9, 40), DIM(64), .flags = LSE | WEIGHTS | VKATTN_BIAS),
     .bias = BIAS_NAN},

    /* ---- Masks ---- */
    {ROW("mask/bytes-attend", NULL, B(2), HEADS(2, 2), LEN(9, 41), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS)},
    {ROW("mask/bytes-ignore", NULL, B(2), HEADS(2, 2), LEN(9, 41), DIM(64), BYTES(IGNORES), .flags = LSE | WEIGHTS)},
    {ROW("mask/bits-attend", "rows padded to bytes",
     B(2), HEADS(2, 2), LEN(9, 41), DIM(64), BITS(ATTENDS), .flags = LSE | WEIGHTS)},
    {ROW("mask/bits-ignore", NULL, B(2), HEADS(2, 2), LEN(9, 41), DIM(64), BITS(IGNORES), .flags = LSE | WEIGHTS)},
    {ROW("mask/bits-anywhere", "rows begin at any bit",
     B(2), HEADS(3, 3), LEN(9, 41), DIM(64), BITS(ATTENDS), .mask = STRIDES(3 * 393 + 5, 391, 43), .flags = LSE)},
    {ROW("mask/by-query", "CASES 3: exactly Tq rows", LEN(75, 40), DIM(64), BYTES(ATTENDS), .flags = LSE)},
    {ROW("mask/one-row", "CASES 22: query stride 0",
     LEN(5, 7), DIM(64), BYTES(ATTENDS), .mask = STRIDES(0, 0, 0), .flags = LSE | WEIGHTS)},
    {ROW("mask/one-head", "CASES 23: [1,1,Tq,Tk]",
     HEADS(4, 4), LEN(5, 7), DIM(64), BYTES(ATTENDS), .mask = STRIDES(0, 0, 7), .flags = LSE | WEIGHTS)},
    {ROW("mask/bits-by-member", "a padding mask [B,1,1,Tk]",
     B(3), HEADS(2, 2), LEN(5, 41), DIM(64), BITS(IGNORES), .mask = STRIDES(41, 0, 0), .flags = LSE)},
    {ROW("mask/sparse", NULL, LEN(40, 130), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS), .mask = MASK_SPARSE},
    {ROW("mask/first-tiles", "whole tiles are hidden first",
     LEN(9, 300), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS),
     .mask = MASK_LAST_HALF},
    {ROW("mask/last-tiles", NULL, LEN(9, 300), DIM(64), BITS(ATTENDS), .flags = LSE), .mask = MASK_FIRST_HALF},
    {ROW("mask/last-key", "only the last key is visible", LEN(9, 300), DIM(64), BITS(ATTENDS), .flags = LSE | WEIGHTS),
     .mask = MASK_LAST_KEY},
    {ROW("mask/last-row", "CASES 26",
     LEN(6, 6), DIM(64), BYTES(ATTENDS), .flags = LSE | WEIGHTS), .mask = MASK_LAST_ROW},
    {ROW("mask/rows", "CASES 7: half of the rows see nothing", LEN(64, 130), DIM(64), BYTES(ATTENDS), .flags = LSE),
     .mask = MASK_ROWS, .repeats = 100},
    {ROW("mask/nothing", "no pair is visible",
     HEADS(2, 2), LEN(9, 130), DIM(64), BITS(ATTENDS), .flags = LSE | WEIGHTS),
     .mask = MASK_NOTHING},
    {ROW("mask/leak", "CASES 28", LEN(2, 2), DIM(64), BYTES(ATTENDS), .flags = LSE), .mask = MASK_FIRST_HALF},
    {ROW("mask/leak-infinite", "hidden keys hold infinities", LEN(9, 70), DIM(64), BYTES(ATTENDS), .flags = LSE),
     .mask = MASK_FIRST_HALF, .poison = POISON_INFINITE},
    {ROW("mask/leak-largest", "hidden keys hold the largest values", LEN(9, 70), DIM(64), BYTES(ATTENDS), .flags = LSE),
     .mask = MASK_FIRST_HALF, .poison = POISON_LARGEST},
    {ROW("mask/triangle", "causal as a mask",
     LEN(40, 40), DIM(64), BITS(ATTENDS), .flags = LSE), .mask = MASK_TRIANGLE},
    {ROW("mask/causal", "CASES 30: both hold",
     LEN(40, 40), DIM(64), BYTES(IGNORES), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL)},
    {ROW("mask/causal-empty", "CASES 30: nothing is left of both",
     LEN(40, 40), DIM(64), BYTES(ATTENDS), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL), .mask = MASK_LAST_KEY},

    /* ---- Band ---- */
    {ROW("causal/top-left", NULL, HEADS(2, 2), LEN(70, 70), DIM(64), TOP_LEFT, .flags = LSE | WEIGHTS | VKATTN_CAUSAL)},
    {ROW("causal/33", "CASES 4", LEN(33, 33), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL)},
    {ROW("causal/top-left-wide", "CASES 29: Tq < Tk",
     LEN(2, 5), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL), .scores = SCORES_ZERO, .values = VALUES_INDEX},
    {ROW("causal/bottom-right-wide", "CASES 29: Tq < Tk",
     LEN(2, 5), DIM(64), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL), .scores = SCORES_ZERO, .values = VALUES_INDEX},
    {ROW("causal/top-left-tall", "CASES 29: Tq > Tk",
     LEN(5, 2), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL), .scores = SCORES_ZERO, .values = VALUES_INDEX},
    {ROW("causal/bottom-right-tall", "CASES 29: Tq > Tk, the first rows see nothing",
     LEN(5, 2), DIM(64), BOTTOM_RIGHT, .flags = LSE | WEIGHTS | VKATTN_CAUSAL), .scores = SCORES_ZERO,
     .values = VALUES_INDEX},
    {ROW("causal/chunk", "a chunk of a longer prompt", HEADS(2, 1), LEN(40, 300), DIM(64), BOTTOM_RIGHT,
                                                     .flags = LSE | VKATTN_CAUSAL)},
    {ROW("causal/tall", NULL, LEN(200, 70), DIM(64), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL)},
    {ROW("causal/f16", NULL, HEADS(2, 2), LEN(70, 70), DIM(64), ALL(F16), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL)},
    {ROW("causal/right", "the tighter bound holds",
     LEN(70, 70), DIM(64), TOP_LEFT, .right = 5, .flags = LSE | VKATTN_CAUSAL | VKATTN_RIGHT)},
    {ROW("window/0-0", "the diagonal", LEN(70, 70), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/1-1", NULL,
     LEN(70, 70), DIM(64), TOP_LEFT, .left = 1, .right = 1, .flags = LSE | WEIGHTS | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/causal-31", "one less than a tile",
     LEN(130, 130), DIM(64), TOP_LEFT, .left = 31, .flags = LSE | VKATTN_CAUSAL | VKATTN_LEFT)},
    {ROW("window/causal-32", NULL,
     LEN(130, 130), DIM(64), TOP_LEFT, .left = 32, .flags = LSE | VKATTN_CAUSAL | VKATTN_LEFT)},
    {ROW("window/causal-65", "one more than a tile",
     LEN(130, 130), DIM(64), TOP_LEFT, .left = 65, .flags = LSE | VKATTN_CAUSAL | VKATTN_LEFT)},
    {ROW("window/wide", "wider than Tk", LEN(40, 70), DIM(64), TOP_LEFT, .left = 1000, .right = 1000,
                                       .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/widest", "the largest bounds there are",
     LEN(40, 70), DIM(64), BOTTOM_RIGHT, .left = INT32_MAX, .right = INT32_MAX,
      .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/right-negative", "keys strictly before: the first row sees nothing",
     LEN(70, 70), DIM(64), TOP_LEFT, .right = -1, .flags = LSE | WEIGHTS | VKATTN_RIGHT)},
    {ROW("window/left-negative", "keys strictly after",
     LEN(70, 70), DIM(64), TOP_LEFT, .left = -1, .flags = LSE | VKATTN_LEFT)},
    {ROW("window/ahead", "a band that is all in the future",
     LEN(70, 70), DIM(64), TOP_LEFT, .left = -3, .right = 9, .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/empty", "no key is inside", LEN(70, 70), DIM(64), TOP_LEFT, .left = -9, .right = 3,
                                           .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/lowest", "the lowest bounds there are",
     LEN(9, 70), DIM(64), TOP_LEFT, .left = INT32_MIN, .right = INT32_MIN,
      .flags = LSE | WEIGHTS | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/bottom-right", NULL, LEN(33, 130), DIM(64), BOTTOM_RIGHT, .left = 17, .right = 3,
                                    .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT)},
    {ROW("window/beyond", "late rows are past all keys",
     LEN(130, 20), DIM(64), TOP_LEFT, .left = 40, .flags = LSE | WEIGHTS | VKATTN_CAUSAL | VKATTN_LEFT)},

    /* ---- Prefix, lengths, segments ---- */
    {ROW("prefix/causal", NULL,
     B(8), LEN(40, 40), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL | VKATTN_PREFIX)},
    {ROW("prefix/alone", "without a band it says nothing", B(2), LEN(9, 40), DIM(64), .flags = LSE | VKATTN_PREFIX),
     .prefix = LENGTHS_HALF},
    {ROW("prefix/window-hole", "keys between the prefix and the window are not read",
     LEN(130, 400), DIM(64), BOTTOM_RIGHT, .left = 10, .flags = LSE | VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_PREFIX),
     .prefix = LENGTHS_HALF},
    {ROW("prefix/window-mixed", NULL,
     B(8), LEN(40, 60), DIM(64), BOTTOM_RIGHT, .left = 5,
      .flags = LSE | WEIGHTS | VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_PREFIX)},
    {ROW("prefix/empty-band", "the prefix alone is visible",
     LEN(9, 70), DIM(64), TOP_LEFT, .left = -9, .right = 3, .flags = LSE | VKATTN_LEFT | VKATTN_RIGHT | VKATTN_PREFIX),
     .prefix = LENGTHS_HALF},
    {ROW("prefix/lengths", "the length of the keys still holds",
     B(8), LEN(9, 40), DIM(64), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL | VKATTN_PREFIX | VKATTN_KV_LENGTHS)},
    {ROW("lengths/kv", "0, beyond Tk, negative", B(8), HEADS(2, 2), LEN(5, 70), DIM(64),
                                               .flags = LSE | WEIGHTS | VKATTN_KV_LENGTHS)},
    {ROW("lengths/q", "rows past the length: O = 0, LSE = -inf", B(8), HEADS(2, 2), LEN(13, 40), DIM(64),
                                                               .flags = LSE | WEIGHTS | VKATTN_Q_LENGTHS)},
    {ROW("lengths/both", NULL, B(8), HEADS(2, 1), LEN(13, 40), DIM(64),
                             .flags = LSE | WEIGHTS | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS)},
    {ROW("lengths/causal", "each member has its own alignment",
     B(8), HEADS(2, 2), LEN(13, 40), DIM(64), BOTTOM_RIGHT,
      .flags = LSE | VKATTN_CAUSAL | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS)},
    {ROW("lengths/sinks", "padding rows keep the sink",
     B(8), HEADS(4, 4), LEN(13, 20), DIM(64), .flags = LSE | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS | VKATTN_SINKS),
     .sinks = SINKS_MIXED},
    {ROW("lengths/zero", "every member is empty",
     B(3), LEN(13, 40), DIM(64), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL | VKATTN_KV_LENGTHS),
     .kv_lengths = LENGTHS_ZERO},
    {ROW("lengths/call", "the call uses less than the capacities",
     B(2), HEADS(2, 1), LEN(64, 128), DIM(64), BOTTOM_RIGHT, .flags = LSE | WEIGHTS | VKATTN_CAUSAL), .shortened = true,
     .lengths = {21, 77}},
    {ROW("lengths/call-decode", "one query of a growing cache",
     B(2), HEADS(4, 2), LEN(1, 256), DIM(64), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL), .shortened = true,
     .lengths = {1, 100}},
    {ROW("lengths/call-empty", "no keys in this call",
     B(2), HEADS(2, 2), LEN(3, 64), DIM(64), .flags = LSE | WEIGHTS), .shortened = true, .lengths = {3, 0}},
    {ROW("lengths/call-no-queries", "no queries in this call",
     B(2), HEADS(2, 2), LEN(3, 64), DIM(64), .flags = LSE | WEIGHTS), .shortened = true, .lengths = {0, 64}},
    {ROW("lengths/call-both", "lengths of members beyond those of the call",
     B(8), LEN(20, 64), DIM(64), BYTES(ATTENDS), BOTTOM_RIGHT,
      .flags = LSE | VKATTN_CAUSAL | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS), .shortened = true, .lengths = {11, 37}},
    {ROW("segments/packed", "documents in one row", B(2), HEADS(2, 2), LEN(70, 70), DIM(64),
                                                  .flags = LSE | WEIGHTS | VKATTN_SEGMENTS)},
    {ROW("segments/causal", NULL,
     B(2), LEN(70, 70), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_SEGMENTS | VKATTN_CAUSAL)},
    {ROW("segments/scattered", "any integers, in any order",
     B(2), LEN(19, 40), DIM(64), .flags = LSE | VKATTN_SEGMENTS),
     .segments = SEGMENTS_SCATTERED},
    {ROW("segments/disjoint", "nothing is visible", B(2), LEN(19, 40), DIM(64), .flags = LSE | VKATTN_SEGMENTS),
     .segments = SEGMENTS_DISJOINT},
    {ROW("segments/lengths", "segment ids past the lengths are not read",
     B(8), LEN(19, 40), DIM(64), .flags = LSE | VKATTN_SEGMENTS | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS),
     .segments = SEGMENTS_SCATTERED},

    /* ---- Together ---- */
    {ROW("all/bytes", "everything at once",
     B(3), HEADS(6, 2), LEN(33, 70), DIM(64), .softcap = 4, BYTES(IGNORES), BOTTOM_RIGHT, .left = 25, .right = 4,
      EVERY_BTHD,
      .flags = LSE | WEIGHTS | VKATTN_LSE_BASE_2 | VKATTN_LEFT | VKATTN_RIGHT | VKATTN_PREFIX | VKATTN_KV_LENGTHS |
               VKATTN_Q_LENGTHS | VKATTN_SEGMENTS | VKATTN_BIAS | VKATTN_ALIBI | VKATTN_SINKS),
     .bias = BIAS_HOLES, .kv_lengths = LENGTHS_RANDOM, .q_lengths = LENGTHS_RANDOM, .prefix = LENGTHS_RANDOM,
     .sinks = SINKS_MIXED, .max_work = 70},
    {ROW("all/bits-f16", NULL,
     B(3), HEADS(6, 2), LEN(33, 70), DIM(64), ALL(F16), .bias_type = VKATTN_F16, .softcap = 4, BITS(ATTENDS),
      BOTTOM_RIGHT, .left = 25,
      .flags = LSE | WEIGHTS | VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_PREFIX | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS |
               VKATTN_SEGMENTS | VKATTN_BIAS | VKATTN_ALIBI | VKATTN_SINKS),
     .bias = BIAS_HOLES, .kv_lengths = LENGTHS_RANDOM, .q_lengths = LENGTHS_RANDOM, .prefix = LENGTHS_RANDOM,
     .sinks = SINKS_MIXED, .poison = POISON_INFINITE, .max_work = 70},

    /* ---- Outputs, dispatches, repetition ---- */
    {ROW("output/o-alone", NULL, HEADS(2, 2), LEN(33, 70), DIM(64))},
    {ROW("output/weights", "without LSE", HEADS(2, 2), LEN(33, 70), DIM(64), .flags = WEIGHTS)},
    {ROW("output/weights-lse", NULL, HEADS(2, 2), LEN(33, 70), DIM(64), .flags = WEIGHTS | LSE)},
    {ROW("output/weights-base-2", "from an LSE in base 2",
     HEADS(2, 2), LEN(33, 70), DIM(64), .flags = WEIGHTS | LSE | VKATTN_LSE_BASE_2), .scores = SCORES_LARGE},
    {ROW("output/lse-base-2", NULL, HEADS(2, 2), LEN(33, 70), DIM(64), .flags = LSE | VKATTN_LSE_BASE_2)},
    {ROW("work/one", "CASES 19: one tile a dispatch gives the same bits",
     HEADS(2, 1), LEN(33, 130), DIM(64), TOP_LEFT, .flags = LSE | VKATTN_CAUSAL), .max_work = 1},
    {ROW("work/some", "a few tiles a dispatch", B(3), HEADS(2, 2), LEN(33, 70), DIM(64), .flags = LSE | WEIGHTS),
     .max_work = 3000},
    {ROW("work/some-f16", "K and V on whole words, where nothing is unpacked",
     B(3), HEADS(2, 1), LEN(33, 70), DIM(64), ALL(F16), .flags = LSE),
     .max_work = 3000},
    {ROW("work/f16", "dispatches that share words of O",
     HEADS(3, 3), LEN(7, 70), DIM(3), ALL(F16), EVERY_BTHD, .flags = LSE),
     .max_work = 1},
    {ROW("repeat/causal", "CASES 11, 48: the same bits, again and again",
     HEADS(4, 2), LEN(70, 130), DIM(64), BOTTOM_RIGHT, .flags = LSE | VKATTN_CAUSAL), .repeats = 100},
    {ROW("repeat/f16", NULL, HEADS(4, 2), LEN(70, 130), DIM(64), ALL(F16), BYTES(ATTENDS), .flags = LSE),
     .mask = MASK_ROWS, .repeats = 20},
};
/* clang-format on */

enum { ROWS = sizeof rows / sizeof *rows };

static vkattn_layout strided(uint64_t batch, uint64_t head, uint64_t row)
{
    return (vkattn_layout){VKATTN_STRIDED, batch, head, row};
}

/* The layouts that follow from sharing memory. */
static void share(struct check_problem *problem)
{
    vkattn_problem *p = &problem->problem;
    const uint64_t d = p->dim_qk, row = (p->heads + 2u * p->kv_heads) * d;
    if (problem->sharing == SHARE_PACKED)
        p->q = p->k = p->v = strided(p->len_kv * row, d, row);
    if (problem->sharing == SHARE_KV)
        p->v = strided(p->kv_heads * p->len_kv * d, p->len_kv * d, d);
}

/* FNV-1a of the name: rows keep their data when others come and go. */
static uint64_t seed_of(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return hash;
}

bool problems_named(uint32_t index, struct check_problem *problem)
{
    if (index >= ROWS)
        return false;
    *problem = rows[index];
    problem->seed = seed_of(problem->name);
    share(problem);
    return true;
}

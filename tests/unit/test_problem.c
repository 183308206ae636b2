/* Validation and the canonical form: every error by field and value, every default, strides, extents, struct versions.
 */
#include "problem.h"

#include "shaders/shared/params.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Tensors that callers give; the library's own follow. */
enum { GIVEN = TENSOR_KV_SEGMENTS + 1 };

/* No default is used and no two sizes are equal, so that a mix-up shows. */
static vkattn_problem valid(void)
{
    return (vkattn_problem){
        .batch = 2, .heads = 6, .kv_heads = 3, .len_q = 5, .len_kv = 13, .dim_qk = 8, .dim_v = 4, .scale = 0.5f};
}

/* The same with every tensor in use. */
static vkattn_problem everything(void)
{
    vkattn_problem p = valid();
    p.flags = VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_RIGHT | VKATTN_PREFIX | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS |
              VKATTN_SEGMENTS | VKATTN_BIAS | VKATTN_ALIBI | VKATTN_SINKS | VKATTN_WRITE_LSE | VKATTN_LSE_BASE_2 |
              VKATTN_WRITE_WEIGHTS;
    p.align = VKATTN_BOTTOM_RIGHT;
    p.left = 3;
    p.right = 1;
    p.mask_kind = VKATTN_MASK_BYTES;
    p.mask_true = VKATTN_TRUE_ATTENDS;
    p.softcap = 30;
    return p;
}

static struct problem canonical(const vkattn_problem *p)
{
    struct problem out;
    const vkattn_status status = vkattn_problem_canonical(p, sizeof *p, &out);
    cr_assert(status == VKATTN_OK, "%s: %s", vkattn_status_name(status), vkattn_last_error());
    return out;
}

static void expect_sentence(const char *field, const char *value)
{
    const char *text = vkattn_last_error();
    cr_expect(strncmp(text, field, strlen(field)) == 0, "\"%s\" does not begin with %s", text, field);
    cr_expect(strstr(text + strlen(field), value), "\"%s\" does not hold the value %s", text, value);
}

static void expect_invalid(const vkattn_problem *p, const char *field, const char *value)
{
    vkattn_error_set(VKATTN_OK, "");
    const vkattn_status status = vkattn_problem_check(p);
    cr_expect(status == VKATTN_INVALID, "%s = %s gave %s", field, value, vkattn_status_name(status));
    expect_sentence(field, value);
}

/* A problem with one thing wrong: the sentence begins with the field and holds the value. */
#define EXPECT_INVALID(field, value, ...) \
    do {                                  \
        vkattn_problem p = everything();  \
        __VA_ARGS__;                      \
        expect_invalid(&p, field, value); \
    } while (0)

#define EXPECT_VALID(...)                                                                              \
    do {                                                                                               \
        vkattn_problem p = everything();                                                               \
        __VA_ARGS__;                                                                                   \
        cr_expect(vkattn_problem_check(&p) == VKATTN_OK, "%s: %s", #__VA_ARGS__, vkattn_last_error()); \
    } while (0)

/* ---- Errors ---------------------------------------------------------------------------------------------------- */

Test(problem, sizes_are_checked)
{
    EXPECT_VALID(p.dim_qk = 1, p.dim_v = 1);
    EXPECT_VALID(p.dim_qk = 576, p.dim_v = 576);
    EXPECT_VALID(p.len_q = 0);
    EXPECT_VALID(p.len_kv = 0);
    EXPECT_INVALID("dim_qk", "0", p.dim_qk = 0);
    EXPECT_INVALID("dim_qk", "577", p.dim_qk = 577);
    EXPECT_INVALID("dim_qk", "4294967295", p.dim_qk = UINT32_MAX);
    EXPECT_INVALID("dim_v", "577", p.dim_v = 577);
    EXPECT_INVALID("len_q", "536870912", p.len_q = 1u << 29);
    EXPECT_INVALID("len_kv", "536870912", p.len_kv = 1u << 29);
    EXPECT_INVALID("heads", "kv_heads is 4", p.kv_heads = 4);
    EXPECT_INVALID("heads", "6", p.kv_heads = 12);
    EXPECT_INVALID("heads", "3 and kv_heads is 2", p.heads = 3, p.kv_heads = 2); /* CASES.md 40 */
}

Test(problem, the_longest_lengths_are_legal)
{
    const vkattn_problem p = {.len_q = 1, .len_kv = (1u << 29) - 1, .dim_qk = 1, .kv_type = VKATTN_F16};
    cr_assert(vkattn_problem_check(&p) == VKATTN_OK, "%s", vkattn_last_error());
}

Test(problem, enums_are_checked)
{
    EXPECT_INVALID("q_type", "3", p.q_type = (vkattn_dtype)3);
    EXPECT_INVALID("kv_type", "3", p.kv_type = (vkattn_dtype)3);
    EXPECT_INVALID("o_type", "255", p.o_type = (vkattn_dtype)255);
    EXPECT_INVALID("bias_type", "3", p.bias_type = (vkattn_dtype)3);
    EXPECT_INVALID("align", "3", p.align = (vkattn_align)3);
    EXPECT_INVALID("mask_kind", "3", p.mask_kind = (vkattn_mask_kind)3);
    EXPECT_INVALID("mask_true", "3", p.mask_true = (vkattn_mask_true)3);
    EXPECT_INVALID("flags", "0x2000", p.flags |= 1u << 13);
    EXPECT_INVALID("flags", "0x80000000", p.flags |= 1u << 31);
    EXPECT_INVALID("q.order", "3", p.q.order = (vkattn_order)3);
    EXPECT_INVALID("k.order", "3", p.k.order = (vkattn_order)3);
    EXPECT_INVALID("v.order", "3", p.v.order = (vkattn_order)3);
    EXPECT_INVALID("o.order", "3", p.o.order = (vkattn_order)3);
    EXPECT_INVALID("lse.order", "3", p.lse.order = (vkattn_order)3);
    EXPECT_INVALID("weights.order", "3", p.weights.order = (vkattn_order)3);
    EXPECT_INVALID("mask.order", "3", p.mask.order = (vkattn_order)3);
    EXPECT_INVALID("bias.order", "3", p.bias.order = (vkattn_order)3);
}

Test(problem, scores_are_checked)
{
    EXPECT_VALID(p.scale = -2);
    EXPECT_VALID(p.scale = 1e-40f);
    EXPECT_INVALID("scale", "nan", p.scale = NAN);
    EXPECT_INVALID("scale", "inf", p.scale = INFINITY);
    EXPECT_INVALID("softcap", "-1", p.softcap = -1);
    EXPECT_INVALID("softcap", "nan", p.softcap = NAN);
    EXPECT_INVALID("softcap", "inf", p.softcap = INFINITY);
    EXPECT_INVALID("flags", "VKATTN_LSE_BASE_2", p.flags = VKATTN_LSE_BASE_2);
}

Test(problem, what_has_two_conventions_must_be_stated)
{
    const uint32_t aligned[] = {VKATTN_CAUSAL, VKATTN_LEFT, VKATTN_RIGHT, VKATTN_ALIBI};
    for (size_t i = 0; i < COUNT(aligned); i++)
        EXPECT_INVALID("align", "VKATTN_ALIGN_UNSTATED", p.flags = aligned[i], p.align = VKATTN_ALIGN_UNSTATED);
    EXPECT_INVALID("mask_true", "VKATTN_TRUE_UNSTATED", p.mask_true = VKATTN_TRUE_UNSTATED);
    EXPECT_VALID(p.flags = VKATTN_PREFIX | VKATTN_BIAS, p.align = VKATTN_ALIGN_UNSTATED);
    EXPECT_VALID(p.mask_kind = VKATTN_MASK_NONE, p.mask_true = VKATTN_TRUE_UNSTATED);
}

Test(problem, strides_need_their_order)
{
    EXPECT_INVALID("q", "7", p.q.batch = 7);
    EXPECT_INVALID("k", "7", p.k.head = 7);
    EXPECT_INVALID("v", "7", p.v.row = 7);
    EXPECT_INVALID("o", "7", p.o = (vkattn_layout){.order = VKATTN_BTHD, .row = 7});
    EXPECT_INVALID("mask", "7", p.mask.row = 7);
    EXPECT_INVALID("bias", "7", p.bias.row = 7);
    EXPECT_INVALID("lse", "7", p.lse.row = 7);
    EXPECT_INVALID("weights", "7", p.weights.row = 7);
}

/* ---- Defaults -------------------------------------------------------------------------------------------------- */

Test(problem, zeros_are_the_documented_defaults)
{
    const vkattn_problem in = {.len_q = 5, .len_kv = 7, .dim_qk = 9};
    const struct problem p = canonical(&in);
    cr_expect(p.batch == 1 && p.heads == 1 && p.kv_heads == 1 && p.group == 1);
    cr_expect(p.dim_v == 9);
    cr_expect(p.scale == 1.0f / 3.0f);
    cr_expect(p.softcap == 0);
    cr_expect(p.q_type == VKATTN_F32 && p.kv_type == VKATTN_F32 && p.o_type == VKATTN_F32);
    cr_expect(p.left == VKA_UNBOUNDED && p.right == VKA_UNBOUNDED);
    cr_expect(!p.bottom_right && !p.mask_ignores && p.mask_kind == VKATTN_MASK_NONE);
    for (int id = 0; id < GIVEN; id++)
        cr_expect(p.tensors[id].used == (id <= TENSOR_O), "%s", vkattn_tensor_names[id]);
}

Test(problem, kv_heads_default_to_heads)
{
    vkattn_problem in = valid();
    in.kv_heads = 0;
    const struct problem p = canonical(&in);
    cr_expect(p.kv_heads == 6 && p.group == 1);
}

Test(problem, stated_values_are_kept)
{
    const vkattn_problem in = everything();
    const struct problem p = canonical(&in);
    cr_expect(p.batch == 2 && p.heads == 6 && p.kv_heads == 3 && p.group == 2);
    cr_expect(p.len_q == 5 && p.len_kv == 13 && p.dim_qk == 8 && p.dim_v == 4);
    cr_expect(p.scale == 0.5f && p.softcap == 30);
    cr_expect(p.bottom_right && p.mask_kind == VKATTN_MASK_BYTES && !p.mask_ignores);
    for (int id = 0; id < GIVEN; id++)
        cr_expect(p.tensors[id].used, "%s", vkattn_tensor_names[id]);
}

static void expect_band(uint32_t flags, int32_t left, int32_t right, int32_t expected_left, int32_t expected_right)
{
    vkattn_problem in = valid();
    in.flags = flags;
    in.align = VKATTN_TOP_LEFT;
    in.left = left;
    in.right = right;
    const struct problem p = canonical(&in);
    cr_expect(p.left == expected_left && p.right == expected_right,
              "flags 0x%" PRIx32 ", left %" PRId32 ", right %" PRId32 " became %" PRId32 ", %" PRId32, flags, left,
              right, p.left, p.right);
}

Test(problem, the_band_counts_only_with_its_flags)
{
    const int32_t none = VKA_UNBOUNDED;
    expect_band(0, 3, 4, none, none);
    expect_band(VKATTN_LEFT, 3, 4, 3, none);
    expect_band(VKATTN_RIGHT, 3, 4, none, 4);
    expect_band(VKATTN_CAUSAL, 3, 4, none, 0);
    expect_band(VKATTN_CAUSAL | VKATTN_RIGHT, 3, 4, none, 0);
    expect_band(VKATTN_CAUSAL | VKATTN_RIGHT, 3, -2, none, -2);
    expect_band(VKATTN_LEFT | VKATTN_RIGHT, -3, -4, -3, -4);
    expect_band(VKATTN_LEFT | VKATTN_RIGHT, INT32_MAX, INT32_MAX, none, none);
    expect_band(VKATTN_LEFT | VKATTN_RIGHT, INT32_MIN, INT32_MIN, -none, -none);
}

/* ---- Strides --------------------------------------------------------------------------------------------------- */

static void expect_strides(const struct problem *p, enum tensor_id id, uint64_t batch, uint64_t head, uint64_t row)
{
    const struct tensor *t = &p->tensors[id];
    cr_expect(t->batch_stride == batch && t->head_stride == head && t->row_stride == row,
              "%s has strides %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", not %" PRIu64 ", %" PRIu64 ", %" PRIu64,
              vkattn_tensor_names[id], t->batch_stride, t->head_stride, t->row_stride, batch, head, row);
}

static void set_orders(vkattn_problem *p, vkattn_order order)
{
    vkattn_layout *const layouts[] = {&p->q, &p->k, &p->v, &p->o, &p->lse, &p->weights, &p->mask, &p->bias};
    for (size_t i = 0; i < COUNT(layouts); i++)
        layouts[i]->order = order;
}

Test(problem, dense_bhtd)
{
    const vkattn_problem in = everything();
    const struct problem p = canonical(&in);
    expect_strides(&p, TENSOR_Q, 6 * 5 * 8, 5 * 8, 8);
    expect_strides(&p, TENSOR_K, 3 * 13 * 8, 13 * 8, 8);
    expect_strides(&p, TENSOR_V, 3 * 13 * 4, 13 * 4, 4);
    expect_strides(&p, TENSOR_O, 6 * 5 * 4, 5 * 4, 4);
    expect_strides(&p, TENSOR_LSE, 6 * 5, 5, 1);
    expect_strides(&p, TENSOR_WEIGHTS, 6 * 5 * 13, 5 * 13, 13);
    expect_strides(&p, TENSOR_MASK, 6 * 5 * 13, 5 * 13, 13);
    expect_strides(&p, TENSOR_BIAS, 6 * 5 * 13, 5 * 13, 13);
}

Test(problem, dense_bthd)
{
    vkattn_problem in = everything();
    set_orders(&in, VKATTN_BTHD);
    const struct problem p = canonical(&in);
    expect_strides(&p, TENSOR_Q, 5 * 6 * 8, 8, 6 * 8);
    expect_strides(&p, TENSOR_K, 13 * 3 * 8, 8, 3 * 8);
    expect_strides(&p, TENSOR_V, 13 * 3 * 4, 4, 3 * 4);
    expect_strides(&p, TENSOR_O, 5 * 6 * 4, 4, 6 * 4);
    expect_strides(&p, TENSOR_LSE, 5 * 6, 1, 6);
    expect_strides(&p, TENSOR_WEIGHTS, 5 * 6 * 13, 13, 6 * 13);
    expect_strides(&p, TENSOR_MASK, 5 * 6 * 13, 13, 6 * 13);
    expect_strides(&p, TENSOR_BIAS, 5 * 6 * 13, 13, 6 * 13);
}

Test(problem, free_strides_are_taken_as_they_are)
{
    vkattn_problem in = valid();
    in.q = (vkattn_layout){.order = VKATTN_STRIDED, .batch = 1000, .head = 11, .row = 97};
    in.k = (vkattn_layout){.order = VKATTN_STRIDED}; /* one row for all */
    const struct problem p = canonical(&in);
    expect_strides(&p, TENSOR_Q, 1000, 11, 97);
    expect_strides(&p, TENSOR_K, 0, 0, 0);
}

Test(problem, vectors_run_along_heads_or_members)
{
    const vkattn_problem in = everything();
    const struct problem p = canonical(&in);
    cr_expect(p.tensors[TENSOR_ALIBI].head_stride == 1 && p.tensors[TENSOR_ALIBI].batch_stride == 0);
    cr_expect(p.tensors[TENSOR_SINKS].head_stride == 1 && p.tensors[TENSOR_SINKS].batch_stride == 0);
    cr_expect(p.tensors[TENSOR_KV_LENGTHS].batch_stride == 1);
    cr_expect(p.tensors[TENSOR_Q_LENGTHS].batch_stride == 1);
    cr_expect(p.tensors[TENSOR_PREFIX].batch_stride == 1);
    cr_expect(p.tensors[TENSOR_Q_SEGMENTS].batch_stride == 5);
    cr_expect(p.tensors[TENSOR_KV_SEGMENTS].batch_stride == 13);
}

Test(problem, bit_rows_are_padded_to_bytes)
{
    vkattn_problem in = everything();
    in.mask_kind = VKATTN_MASK_BITS;
    struct problem p = canonical(&in);
    expect_strides(&p, TENSOR_MASK, 6 * 5 * 16, 5 * 16, 16);
    in.mask.order = VKATTN_BTHD;
    p = canonical(&in);
    expect_strides(&p, TENSOR_MASK, 5 * 6 * 16, 16, 6 * 16);
    in.len_kv = 16;
    p = canonical(&in);
    expect_strides(&p, TENSOR_MASK, 5 * 6 * 16, 16, 6 * 16);
    in.len_kv = 17;
    p = canonical(&in);
    expect_strides(&p, TENSOR_MASK, 5 * 6 * 24, 24, 6 * 24);
    in.mask = (vkattn_layout){.order = VKATTN_STRIDED, .row = 17}; /* free strides count bits */
    p = canonical(&in);
    expect_strides(&p, TENSOR_MASK, 0, 0, 17);
}

/* ---- Extents --------------------------------------------------------------------------------------------------- */

static uint64_t extent(const struct problem *p, enum tensor_id id, uint32_t len_q, uint32_t len_kv)
{
    const vkattn_lengths lengths = {len_q, len_kv};
    uint64_t bits = UINT64_MAX;
    cr_assert(vkattn_tensor_extent(p, id, &lengths, &bits), "%s overflows", vkattn_tensor_names[id]);
    return bits;
}

static void expect_extents(const struct problem *p, uint32_t len_q, uint32_t len_kv, const uint64_t bits[GIVEN])
{
    for (int id = 0; id < GIVEN; id++) {
        const uint64_t got = extent(p, (enum tensor_id)id, len_q, len_kv);
        cr_expect(got == bits[id], "%s with lengths %u, %u spans %" PRIu64 " bits, not %" PRIu64,
                  vkattn_tensor_names[id], len_q, len_kv, got, bits[id]);
    }
}

Test(problem, extents_of_dense_tensors)
{
    vkattn_problem in = everything();
    in.q_type = VKATTN_F16;
    in.o_type = VKATTN_BF16;
    in.bias_type = VKATTN_F16;
    const struct problem p = canonical(&in);
    const uint64_t whole[GIVEN] = {[TENSOR_Q] = 16 * 2 * 6 * 5 * 8,
                                   [TENSOR_K] = 32 * 2 * 3 * 13 * 8,
                                   [TENSOR_V] = 32 * 2 * 3 * 13 * 4,
                                   [TENSOR_O] = 16 * 2 * 6 * 5 * 4,
                                   [TENSOR_LSE] = 32 * 2 * 6 * 5,
                                   [TENSOR_WEIGHTS] = 32 * 2 * 6 * 5 * 13,
                                   [TENSOR_MASK] = 8 * 2 * 6 * 5 * 13,
                                   [TENSOR_BIAS] = 16 * 2 * 6 * 5 * 13,
                                   [TENSOR_ALIBI] = 32 * 6,
                                   [TENSOR_SINKS] = 32 * 6,
                                   [TENSOR_KV_LENGTHS] = 32 * 2,
                                   [TENSOR_Q_LENGTHS] = 32 * 2,
                                   [TENSOR_PREFIX] = 32 * 2,
                                   [TENSOR_Q_SEGMENTS] = 32 * 2 * 5,
                                   [TENSOR_KV_SEGMENTS] = 32 * 2 * 13};
    expect_extents(&p, 5, 13, whole);
}

/* Strides stay the problem's: what a shorter call spans ends earlier in the last slice only. */
Test(problem, extents_of_shorter_calls)
{
    const vkattn_problem in = everything();
    const struct problem p = canonical(&in);
    const uint64_t part[GIVEN] = {[TENSOR_Q] = 32 * (11 * 40 + 2 * 8),
                                  [TENSOR_K] = 32 * (5 * 104 + 7 * 8),
                                  [TENSOR_V] = 32 * (5 * 52 + 7 * 4),
                                  [TENSOR_O] = 32 * (11 * 20 + 2 * 4),
                                  [TENSOR_LSE] = 32 * (11 * 5 + 2),
                                  [TENSOR_WEIGHTS] = 32 * (11 * 65 + 13 + 7),
                                  [TENSOR_MASK] = 8 * (11 * 65 + 13 + 7),
                                  [TENSOR_BIAS] = 32 * (11 * 65 + 13 + 7),
                                  [TENSOR_ALIBI] = 32 * 6,
                                  [TENSOR_SINKS] = 32 * 6,
                                  [TENSOR_KV_LENGTHS] = 32 * 2,
                                  [TENSOR_Q_LENGTHS] = 32 * 2,
                                  [TENSOR_PREFIX] = 32 * 2,
                                  [TENSOR_Q_SEGMENTS] = 32 * (5 + 2),
                                  [TENSOR_KV_SEGMENTS] = 32 * (13 + 7)};
    expect_extents(&p, 2, 7, part);
}

Test(problem, an_empty_tensor_spans_nothing)
{
    const vkattn_problem in = everything();
    const struct problem p = canonical(&in);
    cr_expect(extent(&p, TENSOR_K, 5, 0) == 0 && extent(&p, TENSOR_WEIGHTS, 5, 0) == 0);
    cr_expect(extent(&p, TENSOR_Q, 0, 13) == 0 && extent(&p, TENSOR_LSE, 0, 13) == 0);
    cr_expect(extent(&p, TENSOR_Q, 5, 0) == 32 * 2 * 6 * 5 * 8);
    const vkattn_problem plain = valid();
    const struct problem without = canonical(&plain);
    cr_expect(extent(&without, TENSOR_MASK, 5, 13) == 0, "a tensor that is not used spans nothing");
}

Test(problem, broadcast_tensors_span_one_slice)
{
    vkattn_problem in = everything();
    in.mask = (vkattn_layout){.order = VKATTN_STRIDED, .row = 13};
    in.bias = (vkattn_layout){.order = VKATTN_STRIDED, .head = 13}; /* one row for all queries */
    const struct problem p = canonical(&in);
    cr_expect(extent(&p, TENSOR_MASK, 5, 13) == 8 * 5 * 13);
    cr_expect(extent(&p, TENSOR_BIAS, 5, 13) == 32 * 6 * 13);
}

Test(problem, bit_masks_span_bits)
{
    vkattn_problem in = everything();
    in.mask_kind = VKATTN_MASK_BITS;
    const struct problem p = canonical(&in);
    cr_expect(extent(&p, TENSOR_MASK, 5, 13) == 16 * 59 + 13);
}

Test(problem, tensors_above_4_gib_count_in_64_bits)
{
    const vkattn_problem in = {
        .batch = 4, .heads = 64, .kv_heads = 64, .len_q = 1u << 20, .len_kv = 1u << 20, .dim_qk = 128, .dim_v = 64};
    const struct problem p = canonical(&in);
    cr_expect(extent(&p, TENSOR_K, 1, in.len_kv) == UINT64_C(1) << 40, "2^35 elements are 128 GiB");
    cr_expect(extent(&p, TENSOR_O, in.len_q, 1) == UINT64_C(1) << 39);
    cr_expect(p.tensors[TENSOR_K].batch_stride == UINT64_C(1) << 33);
    const vkattn_problem strided = {.batch = 3,
                                    .len_q = 1,
                                    .len_kv = 2,
                                    .dim_qk = 8,
                                    .k = {.order = VKATTN_STRIDED, .batch = UINT64_C(1) << 50, .row = 8}};
    const struct problem far = canonical(&strided);
    cr_expect(extent(&far, TENSOR_K, 1, 2) == 32 * ((UINT64_C(1) << 51) + 16));
}

Test(problem, extents_that_overflow_are_refused)
{
    EXPECT_INVALID("k", "2^64", p.k = (vkattn_layout){.order = VKATTN_STRIDED, .batch = UINT64_MAX, .row = 8});
    EXPECT_INVALID("v", "2^64", p.v = (vkattn_layout){.order = VKATTN_STRIDED, .head = UINT64_C(1) << 63, .row = 8});
    EXPECT_INVALID("q", "2^64", p.q = (vkattn_layout){.order = VKATTN_STRIDED, .batch = UINT64_C(1) << 59, .row = 8});
    EXPECT_INVALID("o", "2^64", p.o = (vkattn_layout){.order = VKATTN_STRIDED, .batch = UINT64_C(1) << 60, .row = 4});
    EXPECT_INVALID("mask", "2^64",
                   p.mask = (vkattn_layout){.order = VKATTN_STRIDED, .head = UINT64_MAX / 4, .row = 13});
    EXPECT_INVALID("q", "2^64", p.heads = p.kv_heads = UINT32_MAX, p.len_q = 1u << 28, p.dim_qk = 576);
    EXPECT_INVALID("q", "2^64", p.batch = UINT32_MAX, p.len_q = 1u << 19, p.heads = p.kv_heads = 1u << 10);
}

Test(problem, slices_of_4_gib_are_refused)
{
    const vkattn_problem most = {.len_q = 1, .len_kv = (1u << 23) - 1, .dim_qk = 128};
    cr_assert(vkattn_problem_check(&most) == VKATTN_OK, "%s", vkattn_last_error());
    EXPECT_INVALID("k", "8388608", p = most, p.len_kv++);
    EXPECT_INVALID("v", "8388608", p = most, p.len_kv++, p.dim_qk = 1, p.dim_v = 128);
    EXPECT_INVALID("q", "8388608", p = most, p.len_q = 1u << 23);
    EXPECT_INVALID("k", "16777216", p = most, p.kv_type = VKATTN_F16, p.len_kv = 1u << 24);
    EXPECT_INVALID("k", "1073741824", p.k = (vkattn_layout){.order = VKATTN_STRIDED, .row = 1u << 30});
    EXPECT_INVALID("k", "4294967296", p.k = (vkattn_layout){.order = VKATTN_STRIDED, .row = UINT64_C(1) << 32});
    EXPECT_INVALID("bias", "2147483648", p.bias = (vkattn_layout){.order = VKATTN_STRIDED, .row = 1u << 31});
    /* A row stride that no row uses may be anything. */
    EXPECT_VALID(p.len_kv = 1, p.k = (vkattn_layout){.order = VKATTN_STRIDED, .row = UINT64_MAX});
}

/* Kernels count the elements of a slice in 32 bits, and a byte holds 8 of a bit mask. */
Test(problem, slices_of_2_to_the_32_elements_are_refused)
{
    EXPECT_INVALID("mask", "1431655766", p.mask_kind = VKATTN_MASK_BITS, p.len_q = 4,
                   p.mask = (vkattn_layout){.order = VKATTN_STRIDED, .row = 1431655766});
    EXPECT_VALID(p.mask_kind = VKATTN_MASK_BITS, p.len_q = 4,
                 p.mask = (vkattn_layout){.order = VKATTN_STRIDED, .row = 1431655000});
}

/* ---- Outputs --------------------------------------------------------------------------------------------------- */

#define STRIDES(b, h, r) ((vkattn_layout){.order = VKATTN_STRIDED, .batch = (b), .head = (h), .row = (r)})

Test(problem, outputs_may_not_overlap_themselves)
{
    /* B = 2, H = 6, Tq = 5, dv = 4. */
    EXPECT_INVALID("o", "0", p.o = STRIDES(120, 20, 0));
    EXPECT_INVALID("o", "0", p.o = STRIDES(0, 20, 4));
    EXPECT_INVALID("o", "0", p.o = STRIDES(120, 0, 4));
    EXPECT_INVALID("o", "3", p.o = STRIDES(120, 20, 3));
    EXPECT_INVALID("o", "19", p.o = STRIDES(120, 19, 4));
    EXPECT_INVALID("o", "119", p.o = STRIDES(119, 20, 4));
    EXPECT_INVALID("o", "20", p.o = STRIDES(20, 20, 4));
    EXPECT_INVALID("lse", "0", p.lse = STRIDES(0, 5, 1));
    EXPECT_INVALID("lse", "4", p.lse = STRIDES(30, 4, 1));
    EXPECT_INVALID("weights", "12", p.weights = STRIDES(390, 65, 12));
}

Test(problem, outputs_may_lie_anyhow_else)
{
    EXPECT_VALID(p.o = STRIDES(120, 4, 24));   /* rows outside heads */
    EXPECT_VALID(p.o = STRIDES(4, 8, 48));     /* batch innermost */
    EXPECT_VALID(p.o = STRIDES(1000, 100, 7)); /* gaps */
    EXPECT_VALID(p.lse = STRIDES(1, 2, 12));   /* batch innermost */
    EXPECT_VALID(p.batch = 1, p.o = STRIDES(0, 20, 4));
    EXPECT_VALID(p.heads = p.kv_heads = 1, p.o = STRIDES(20, 0, 4));
    EXPECT_VALID(p.len_q = 1, p.o = STRIDES(24, 4, 0));
    EXPECT_VALID(p.len_q = 0, p.o = STRIDES(0, 0, 0));
    EXPECT_VALID(p.len_kv = 0, p.weights = STRIDES(0, 0, 0));
    EXPECT_VALID(p.q = p.k = p.v = p.mask = p.bias = STRIDES(0, 0, 0)); /* inputs broadcast */
}

/* ---- Lengths --------------------------------------------------------------------------------------------------- */

Test(problem, lengths_default_to_the_problems)
{
    const vkattn_problem in = valid();
    const struct problem p = canonical(&in);
    vkattn_lengths out;
    cr_assert(vkattn_problem_lengths(&p, NULL, &out) == VKATTN_OK);
    cr_expect(out.len_q == 5 && out.len_kv == 13);
    const vkattn_lengths none = {0, 0};
    cr_assert(vkattn_problem_lengths(&p, &none, &out) == VKATTN_OK);
    cr_expect(out.len_q == 0 && out.len_kv == 0, "a length of 0 is 0 and not a default");
}

Test(problem, lengths_stay_within_the_problems)
{
    const vkattn_problem in = valid();
    const struct problem p = canonical(&in);
    vkattn_lengths out;
    const vkattn_lengths rows = {6, 13}, keys = {5, 14};
    cr_expect(vkattn_problem_lengths(&p, &rows, &out) == VKATTN_INVALID);
    expect_sentence("lengths.len_q", "6");
    cr_expect(vkattn_problem_lengths(&p, &keys, &out) == VKATTN_INVALID);
    expect_sentence("lengths.len_kv", "14");
}

/* ---- Versions of the struct ------------------------------------------------------------------------------------ */

/* The first `size` bytes of a problem in memory of just that size: a sanitizer sees a read past it. */
static vkattn_status check_prefix(const vkattn_problem *p, size_t size)
{
    void *copy = malloc(size);
    cr_assert(copy);
    memcpy(copy, p, size < sizeof *p ? size : sizeof *p);
    const vkattn_status status = vkattn_problem_check_sized(copy, size);
    free(copy);
    return status;
}

Test(problem, a_smaller_struct_is_filled_with_zeros)
{
    vkattn_problem p = valid();
    p.bias.order = (vkattn_order)9; /* read by nobody who passes the smaller size */
    p.flags = VKATTN_BIAS;
    cr_expect(check_prefix(&p, offsetof(vkattn_problem, bias)) == VKATTN_OK, "%s", vkattn_last_error());
    cr_expect(check_prefix(&p, offsetof(vkattn_problem, dim_v)) == VKATTN_OK, "%s", vkattn_last_error());
    cr_expect(check_prefix(&p, offsetof(vkattn_problem, dim_qk)) == VKATTN_INVALID);
    expect_sentence("dim_qk", "0");
    cr_expect(check_prefix(&p, sizeof p) == VKATTN_INVALID);
    expect_sentence("bias.order", "9");
}

Test(problem, a_larger_struct_must_end_in_zeros)
{
    struct {
        vkattn_problem known;
        unsigned char tail[16];
    } newer = {.known = valid()};
    cr_expect(vkattn_problem_check_sized(&newer.known, sizeof newer) == VKATTN_OK, "%s", vkattn_last_error());
    newer.tail[15] = 1;
    cr_expect(vkattn_problem_check_sized(&newer.known, sizeof newer) == VKATTN_INVALID);
    expect_sentence("problem is of a newer version", "byte");
}

Test(problem, null_is_refused)
{
    cr_expect(vkattn_problem_check(NULL) == VKATTN_INVALID);
    expect_sentence("problem", "NULL");
}

/* ---- Names and pointers ---------------------------------------------------------------------------------------- */

Test(problem, each_tensor_has_its_name_and_pointer)
{
    char at[GIVEN];
    const vkattn_tensors t = {.q = &at[0],
                              .k = &at[1],
                              .v = &at[2],
                              .o = &at[3],
                              .lse = (float *)(void *)&at[4],
                              .weights = (float *)(void *)&at[5],
                              .mask = &at[6],
                              .bias = &at[7],
                              .alibi = (const float *)(void *)&at[8],
                              .sinks = (const float *)(void *)&at[9],
                              .kv_lengths = (const int32_t *)(void *)&at[10],
                              .q_lengths = (const int32_t *)(void *)&at[11],
                              .prefix = (const int32_t *)(void *)&at[12],
                              .q_segments = (const int32_t *)(void *)&at[13],
                              .kv_segments = (const int32_t *)(void *)&at[14]};
    static const char *const names[GIVEN] = {"q",          "k",         "v",      "o",          "lse",
                                             "weights",    "mask",      "bias",   "alibi",      "sinks",
                                             "kv_lengths", "q_lengths", "prefix", "q_segments", "kv_segments"};
    for (int id = 0; id < GIVEN; id++) {
        cr_expect_str_eq(vkattn_tensor_names[id], names[id]);
        cr_expect(vkattn_tensors_get(&t, (enum tensor_id)id) == &at[id], "%s", names[id]);
    }
}

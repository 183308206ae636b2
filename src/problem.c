/* Validation of a problem and its canonical form. Everything that a kernel or the reference may rely on is refused or
 * filled in here, and nowhere else. */
#include "problem.h"

#include "dtype.h"
#include "shaders/shared/params.h"
#include "status.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

_Static_assert(TENSOR_COUNT == VKA_TENSORS, "enum tensor_id and params.h list the same tensors");
_Static_assert(TENSOR_STATS == VKA_STATS, "enum tensor_id and params.h have the same order");

const char *const vkattn_tensor_names[TENSOR_COUNT] = {
    "q",          "k",         "v",      "o",          "lse",         "weights", "mask",   "bias", "alibi", "sinks",
    "kv_lengths", "q_lengths", "prefix", "q_segments", "kv_segments", "k_copy",  "v_copy", "sums", "parts", "stats"};

static const char *const merge_names[TENSOR_COUNT] = {[TENSOR_FIRST_O] = "first_o",
                                                      [TENSOR_SECOND_O] = "second_o",
                                                      [TENSOR_FIRST_LSE] = "first_lse",
                                                      [TENSOR_SECOND_LSE] = "second_lse",
                                                      [TENSOR_O] = "o",
                                                      [TENSOR_LSE] = "lse"};

enum {
    ALL_FLAGS = (VKATTN_WRITE_WEIGHTS << 1) - 1,
    BAND_FLAGS = VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_RIGHT,
};

static vkattn_status check_enum(const char *field, int value, int last)
{
    REQUIRE(value >= 0 && value <= last, "%s is %d: not a value of its enum", field, value);
    return VKATTN_OK;
}

static vkattn_status check_dim(const char *field, uint32_t value)
{
    REQUIRE(value >= 1 && value <= VKATTN_MAX_DIM, "%s is %" PRIu32 ": must be 1 to %u", field, value, VKATTN_MAX_DIM);
    return VKATTN_OK;
}

static vkattn_status check_length(const char *field, uint32_t value)
{
    REQUIRE(value <= VKA_MAX_LENGTH, "%s is %" PRIu32 ": must be at most %u", field, value, VKA_MAX_LENGTH);
    return VKATTN_OK;
}

static vkattn_status fill_sizes(const vkattn_problem *in, struct problem *out)
{
    out->batch = in->batch ? in->batch : 1;
    out->heads = in->heads ? in->heads : 1;
    out->kv_heads = in->kv_heads ? in->kv_heads : out->heads;
    out->len_q = in->len_q;
    out->len_kv = in->len_kv;
    out->dim_qk = in->dim_qk;
    out->dim_v = in->dim_v ? in->dim_v : in->dim_qk;
    TRY(check_dim("dim_qk", out->dim_qk));
    TRY(check_dim("dim_v", out->dim_v));
    TRY(check_length("len_q", out->len_q));
    TRY(check_length("len_kv", out->len_kv));
    REQUIRE(out->kv_heads <= out->heads && out->heads % out->kv_heads == 0,
            "heads is %" PRIu32 " and kv_heads is %" PRIu32 ": heads must be a multiple of kv_heads", out->heads,
            out->kv_heads);
    out->group = out->heads / out->kv_heads;
    return VKATTN_OK;
}

static vkattn_status fill_types(const vkattn_problem *in, struct problem *out)
{
    TRY(check_enum("q_type", (int)in->q_type, VKATTN_BF16));
    TRY(check_enum("kv_type", (int)in->kv_type, VKATTN_BF16));
    TRY(check_enum("o_type", (int)in->o_type, VKATTN_BF16));
    TRY(check_enum("bias_type", (int)in->bias_type, VKATTN_BF16));
    TRY(check_enum("align", (int)in->align, VKATTN_BOTTOM_RIGHT));
    TRY(check_enum("mask_kind", (int)in->mask_kind, VKATTN_MASK_BITS));
    TRY(check_enum("mask_true", (int)in->mask_true, VKATTN_TRUE_IGNORES));
    REQUIRE((in->flags & ~(uint32_t)ALL_FLAGS) == 0, "flags is 0x%" PRIx32 ": bits 0x%" PRIx32 " mean nothing",
            in->flags, in->flags & ~(uint32_t)ALL_FLAGS);
    out->q_type = in->q_type;
    out->kv_type = in->kv_type;
    out->o_type = in->o_type;
    out->bias_type = in->bias_type;
    out->flags = in->flags;
    return VKATTN_OK;
}

static vkattn_status fill_scores(const vkattn_problem *in, struct problem *out)
{
    REQUIRE(isfinite(in->scale), "scale is %g: must be finite", (double)in->scale);
    REQUIRE(isfinite(in->softcap) && in->softcap >= 0, "softcap is %g: must be finite and not negative",
            (double)in->softcap);
    REQUIRE(!(in->flags & VKATTN_LSE_BASE_2) || (in->flags & VKATTN_WRITE_LSE),
            "flags has VKATTN_LSE_BASE_2 without VKATTN_WRITE_LSE");
    out->scale = in->scale != 0 ? in->scale : 1.0f / sqrtf((float)out->dim_qk);
    out->softcap = in->softcap;
    return VKATTN_OK;
}

static int32_t clamp_bound(int32_t bound)
{
    return bound > VKA_UNBOUNDED ? VKA_UNBOUNDED : bound < -VKA_UNBOUNDED ? -VKA_UNBOUNDED : bound;
}

static vkattn_status fill_visibility(const vkattn_problem *in, struct problem *out)
{
    REQUIRE(in->align != VKATTN_ALIGN_UNSTATED || !(in->flags & (BAND_FLAGS | VKATTN_ALIBI)),
            "align is VKATTN_ALIGN_UNSTATED: a band or ALiBi needs VKATTN_TOP_LEFT or VKATTN_BOTTOM_RIGHT");
    REQUIRE(in->mask_kind == VKATTN_MASK_NONE || in->mask_true != VKATTN_TRUE_UNSTATED,
            "mask_true is VKATTN_TRUE_UNSTATED: a mask needs VKATTN_TRUE_ATTENDS or VKATTN_TRUE_IGNORES");
    out->bottom_right = in->align == VKATTN_BOTTOM_RIGHT;
    out->left = in->flags & VKATTN_LEFT ? clamp_bound(in->left) : VKA_UNBOUNDED;
    out->right = in->flags & VKATTN_RIGHT ? clamp_bound(in->right) : VKA_UNBOUNDED;
    if ((in->flags & VKATTN_CAUSAL) && out->right > 0)
        out->right = 0;
    out->mask_kind = in->mask_kind;
    out->mask_ignores = in->mask_true == VKATTN_TRUE_IGNORES;
    return VKATTN_OK;
}

static uint32_t dtype_bits(vkattn_dtype type)
{
    return type == VKATTN_F32 ? 32 : 16;
}

static bool multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    if (a != 0 && b > UINT64_MAX / a)
        return false;
    *product = a * b;
    return true;
}

static vkattn_status dense_strides(struct tensor *t, const char *name, bool rows_outside)
{
    uint64_t row = t->row_width;
    /* A dense row of a bit mask is padded to whole bytes, as numpy.packbits does. */
    if (t->bits == 1)
        row = (row + 7) / 8 * 8;
    const uint64_t inner = rows_outside ? t->heads : t->rows;
    uint64_t middle, outer;
    REQUIRE(multiply(row, inner, &middle) && multiply(middle, rows_outside ? t->rows : t->heads, &outer),
            "%s has more than 2^64 elements", name);
    t->row_stride = rows_outside ? middle : row;
    t->head_stride = rows_outside ? row : middle;
    t->batch_stride = outer;
    return VKATTN_OK;
}

static vkattn_status fill_layout(struct tensor *t, const char *name, const vkattn_layout *layout)
{
    REQUIRE((int)layout->order >= VKATTN_BHTD && (int)layout->order <= VKATTN_STRIDED,
            "%s.order is %d: not a value of its enum", name, (int)layout->order);
    if (layout->order == VKATTN_STRIDED) {
        t->batch_stride = layout->batch;
        t->head_stride = layout->head;
        t->row_stride = layout->row;
        return VKATTN_OK;
    }
    REQUIRE(layout->batch == 0 && layout->head == 0 && layout->row == 0,
            "%s has strides %" PRIu64 ", %" PRIu64 ", %" PRIu64 " but its order is not VKATTN_STRIDED", name,
            layout->batch, layout->head, layout->row);
    return dense_strides(t, name, layout->order == VKATTN_BTHD);
}

/* Elements from the first to past the last; false when that overflows. */
static bool span(uint64_t batch, const struct tensor *t, uint64_t *elements)
{
    uint64_t b, h, r;
    if (batch == 0 || t->heads == 0 || t->rows == 0 || t->row_width == 0) {
        *elements = 0;
        return true;
    }
    if (!multiply(batch - 1, t->batch_stride, &b) || !multiply(t->heads - 1u, t->head_stride, &h) ||
        !multiply(t->rows - 1, t->row_stride, &r))
        return false;
    const uint64_t parts[] = {h, r, t->row_width};
    for (size_t i = 0; i < 3; i++) {
        if (b > UINT64_MAX / 32 - parts[i]) /* bits must fit, too */
            return false;
        b += parts[i];
    }
    *elements = b;
    return b <= UINT64_MAX / 32;
}

static vkattn_status check_slice(const struct tensor *t, const char *name)
{
    const struct tensor slice = {
        .bits = t->bits, .heads = 1, .rows = t->rows, .row_width = t->row_width, .row_stride = t->row_stride};
    uint64_t elements;
    REQUIRE(t->row_stride <= UINT32_MAX || t->rows <= 1, "%s.row is %" PRIu64 ": must be below 2^32", name,
            t->row_stride);
    /* Kernels count a slice's bytes and its elements in 32 bits; a byte holds 8 elements of a bit mask. */
    REQUIRE(span(1, &slice, &elements) && elements <= UINT64_C(0xFFFFFFE0) / (t->bits < 8 ? 8 : t->bits) * 8,
            "%s: one (batch, head) slice of %" PRIu64 " rows at stride %" PRIu64
            " spans 4 GiB or 2^32 elements or more",
            name, t->rows, t->row_stride);
    return VKATTN_OK;
}

/* Sorted by stride, each dimension must step over the whole of the smaller ones: then no two elements coincide. */
static vkattn_status check_distinct(uint64_t batch, const struct tensor *t, const char *name)
{
    uint64_t stride[3] = {t->batch_stride, t->head_stride, t->row_stride};
    uint64_t extent[3] = {batch, t->heads, t->rows};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2 - i; j++)
            if (stride[j] > stride[j + 1] || (stride[j] == stride[j + 1] && extent[j] > extent[j + 1])) {
                const uint64_t s = stride[j], e = extent[j];
                stride[j] = stride[j + 1], extent[j] = extent[j + 1];
                stride[j + 1] = s, extent[j + 1] = e;
            }
    uint64_t inner = t->row_width;
    for (int i = 0; i < 3; i++) {
        if (extent[i] <= 1)
            continue;
        REQUIRE(stride[i] >= inner, "%s is an output and its stride %" PRIu64 " makes elements coincide", name,
                stride[i]);
        inner += (extent[i] - 1) * stride[i];
    }
    return VKATTN_OK;
}

static vkattn_status add_tensor(struct problem *p, enum tensor_id id, const vkattn_layout *layout, struct tensor t)
{
    const char *name = p->names[id];
    struct tensor *out = &p->tensors[id];
    *out = t;
    out->used = true;
    TRY(fill_layout(out, name, layout));
    uint64_t elements;
    REQUIRE(span(p->batch, out, &elements), "%s spans more than 2^64 bits", name);
    TRY(check_slice(out, name));
    if (out->output && elements > 0)
        TRY(check_distinct(p->batch, out, name));
    return VKATTN_OK;
}

static vkattn_status add_main_tensors(const vkattn_problem *in, struct problem *p)
{
    TRY(add_tensor(
        p, TENSOR_Q, &in->q,
        (struct tensor){.bits = dtype_bits(p->q_type), .heads = p->heads, .rows = p->len_q, .row_width = p->dim_qk}));
    TRY(add_tensor(
        p, TENSOR_K, &in->k,
        (struct tensor){
            .bits = dtype_bits(p->kv_type), .heads = p->kv_heads, .rows = p->len_kv, .row_width = p->dim_qk}));
    TRY(add_tensor(
        p, TENSOR_V, &in->v,
        (struct tensor){
            .bits = dtype_bits(p->kv_type), .heads = p->kv_heads, .rows = p->len_kv, .row_width = p->dim_v}));
    return add_tensor(
        p, TENSOR_O, &in->o,
        (struct tensor){
            .bits = dtype_bits(p->o_type), .heads = p->heads, .rows = p->len_q, .row_width = p->dim_v, .output = true});
}

static vkattn_status add_pair_tensors(const vkattn_problem *in, struct problem *p)
{
    struct tensor pairs = {.bits = 32, .heads = p->heads, .rows = p->len_q, .row_width = p->len_kv, .output = true};
    if (p->flags & VKATTN_WRITE_WEIGHTS)
        TRY(add_tensor(p, TENSOR_WEIGHTS, &in->weights, pairs));
    pairs.output = false;
    if (p->flags & VKATTN_BIAS) {
        pairs.bits = dtype_bits(p->bias_type);
        TRY(add_tensor(p, TENSOR_BIAS, &in->bias, pairs));
    }
    if (p->mask_kind != VKATTN_MASK_NONE) {
        pairs.bits = p->mask_kind == VKATTN_MASK_BITS ? 1 : 8;
        TRY(add_tensor(p, TENSOR_MASK, &in->mask, pairs));
    }
    return VKATTN_OK;
}

/* Vectors by head or by batch member are tensors too, so that a kernel reaches them the same way: the vector runs along
 * the heads, the batch or the row. */
static vkattn_status add_vectors(const vkattn_problem *in, struct problem *p)
{
    static const vkattn_layout dense = {.order = VKATTN_BHTD};
    const vkattn_layout by_head = {.order = VKATTN_STRIDED, .head = 1};
    const struct tensor per_head = {.bits = 32, .heads = p->heads, .rows = 1, .row_width = 1};
    const struct tensor per_member = {.bits = 32, .heads = 1, .rows = 1, .row_width = 1};
    if (p->flags & VKATTN_WRITE_LSE)
        TRY(add_tensor(
            p, TENSOR_LSE, &in->lse,
            (struct tensor){.bits = 32, .heads = p->heads, .rows = p->len_q, .row_width = 1, .output = true}));
    if (p->flags & VKATTN_ALIBI)
        TRY(add_tensor(p, TENSOR_ALIBI, &by_head, per_head));
    if (p->flags & VKATTN_SINKS)
        TRY(add_tensor(p, TENSOR_SINKS, &by_head, per_head));
    if (p->flags & VKATTN_KV_LENGTHS)
        TRY(add_tensor(p, TENSOR_KV_LENGTHS, &dense, per_member));
    if (p->flags & VKATTN_Q_LENGTHS)
        TRY(add_tensor(p, TENSOR_Q_LENGTHS, &dense, per_member));
    if (p->flags & VKATTN_PREFIX)
        TRY(add_tensor(p, TENSOR_PREFIX, &dense, per_member));
    if (p->flags & VKATTN_SEGMENTS) {
        TRY(add_tensor(p, TENSOR_Q_SEGMENTS, &dense,
                       (struct tensor){.bits = 32, .heads = 1, .rows = 1, .row_width = p->len_q}));
        TRY(add_tensor(p, TENSOR_KV_SEGMENTS, &dense,
                       (struct tensor){.bits = 32, .heads = 1, .rows = 1, .row_width = p->len_kv}));
    }
    return VKATTN_OK;
}

vkattn_status vkattn_problem_canonical(const vkattn_problem *in, size_t in_size, struct problem *out)
{
    vkattn_problem problem;
    TRY(vkattn_copy_sized(&problem, sizeof problem, in, in_size, "problem"));
    *out = (struct problem){.names = vkattn_tensor_names};
    TRY(fill_sizes(&problem, out));
    TRY(fill_types(&problem, out));
    TRY(fill_scores(&problem, out));
    TRY(fill_visibility(&problem, out));
    TRY(add_main_tensors(&problem, out));
    TRY(add_pair_tensors(&problem, out));
    return add_vectors(&problem, out);
}

vkattn_status vkattn_problem_check_sized(const vkattn_problem *problem, size_t problem_size)
{
    struct problem canonical;
    return vkattn_problem_canonical(problem, problem_size, &canonical);
}

static vkattn_status fill_merge(const vkattn_merge *in, struct problem *out)
{
    const uint32_t allowed = VKATTN_WRITE_LSE | VKATTN_LSE_BASE_2;
    out->batch = in->batch ? in->batch : 1;
    out->heads = out->kv_heads = in->heads ? in->heads : 1;
    out->group = 1;
    out->len_q = out->len_kv = in->len_q;
    out->dim_qk = out->dim_v = in->dim_v;
    TRY(check_dim("dim_v", out->dim_v));
    TRY(check_length("len_q", out->len_q));
    TRY(check_enum("part_type", (int)in->part_type, VKATTN_BF16));
    TRY(check_enum("o_type", (int)in->o_type, VKATTN_BF16));
    REQUIRE((in->flags & ~allowed) == 0, "flags is 0x%" PRIx32 ": bits 0x%" PRIx32 " mean nothing in a merge",
            in->flags, in->flags & ~allowed);
    out->q_type = out->kv_type = in->part_type;
    out->o_type = in->o_type;
    out->flags = in->flags;
    out->left = out->right = VKA_UNBOUNDED;
    return VKATTN_OK;
}

vkattn_status vkattn_merge_canonical(const vkattn_merge *in, size_t in_size, struct problem *out)
{
    vkattn_merge m;
    TRY(vkattn_copy_sized(&m, sizeof m, in, in_size, "merge"));
    *out = (struct problem){.merge = true, .names = merge_names};
    TRY(fill_merge(&m, out));
    struct tensor o = {.bits = dtype_bits(out->kv_type), .heads = out->heads, .rows = out->len_q, .row_width = m.dim_v};
    struct tensor lse = {.bits = 32, .heads = out->heads, .rows = out->len_q, .row_width = 1};
    TRY(add_tensor(out, (enum tensor_id)TENSOR_FIRST_O, &m.first_o, o));
    TRY(add_tensor(out, (enum tensor_id)TENSOR_SECOND_O, &m.second_o, o));
    TRY(add_tensor(out, (enum tensor_id)TENSOR_FIRST_LSE, &m.first_lse, lse));
    TRY(add_tensor(out, (enum tensor_id)TENSOR_SECOND_LSE, &m.second_lse, lse));
    o.bits = dtype_bits(out->o_type);
    o.output = lse.output = true;
    TRY(add_tensor(out, TENSOR_O, &m.o, o));
    return m.flags & VKATTN_WRITE_LSE ? add_tensor(out, TENSOR_LSE, &m.lse, lse) : VKATTN_OK;
}

uint64_t vkattn_problem_add_own(struct problem *problem, enum tensor_id id, struct tensor t)
{
    t.used = true;
    t.bits = 32;
    t.head_stride = t.row_stride * t.rows;
    t.batch_stride = t.head_stride * t.heads;
    problem->tensors[id] = t;
    return problem->batch * t.batch_stride * 4;
}

vkattn_status vkattn_problem_lengths(const struct problem *problem, const vkattn_lengths *lengths, vkattn_lengths *out)
{
    *out = lengths ? *lengths : (vkattn_lengths){problem->len_q, problem->len_kv};
    if (problem->merge)
        out->len_kv = out->len_q;
    REQUIRE(out->len_q <= problem->len_q, "lengths.len_q is %" PRIu32 ": the problem's capacity is %" PRIu32,
            out->len_q, problem->len_q);
    REQUIRE(out->len_kv <= problem->len_kv, "lengths.len_kv is %" PRIu32 ": the problem's capacity is %" PRIu32,
            out->len_kv, problem->len_kv);
    return VKATTN_OK;
}

/* What a dimension of a tensor counts. */
enum measure { FIXED, LEN_Q, LEN_KV };

static const struct {
    enum measure rows, row_width;
} measures[TENSOR_COUNT] = {
    [TENSOR_Q] = {LEN_Q, FIXED},          [TENSOR_K] = {LEN_KV, FIXED},
    [TENSOR_V] = {LEN_KV, FIXED},         [TENSOR_O] = {LEN_Q, FIXED},
    [TENSOR_LSE] = {LEN_Q, FIXED},        [TENSOR_WEIGHTS] = {LEN_Q, LEN_KV},
    [TENSOR_MASK] = {LEN_Q, LEN_KV},      [TENSOR_BIAS] = {LEN_Q, LEN_KV},
    [TENSOR_Q_SEGMENTS] = {FIXED, LEN_Q}, [TENSOR_KV_SEGMENTS] = {FIXED, LEN_KV},
    [TENSOR_K_COPY] = {LEN_KV, FIXED},    [TENSOR_V_COPY] = {LEN_KV, FIXED},
    [TENSOR_SUMS] = {LEN_Q, FIXED},
};

static uint32_t measured(enum measure measure, uint32_t fixed, const vkattn_lengths *lengths)
{
    return measure == LEN_Q ? lengths->len_q : measure == LEN_KV ? lengths->len_kv : fixed;
}

struct tensor vkattn_tensor_of(const struct problem *problem, enum tensor_id id, const vkattn_lengths *lengths)
{
    struct tensor t = problem->tensors[id];
    if (problem->merge) {
        t.rows = lengths->len_q;
        return t;
    }
    t.rows = measured(measures[id].rows, (uint32_t)t.rows, lengths);
    t.row_width = measured(measures[id].row_width, t.row_width, lengths);
    return t;
}

bool vkattn_tensor_extent(const struct problem *problem, enum tensor_id id, const vkattn_lengths *lengths,
                          uint64_t *bits)
{
    const struct tensor t = vkattn_tensor_of(problem, id, lengths);
    uint64_t elements = 0;
    if (t.used && !span(problem->batch, &t, &elements))
        return false;
    *bits = elements * t.bits;
    return true;
}

const void *vkattn_tensors_get(const vkattn_tensors *tensors, enum tensor_id id)
{
    static const size_t offsets[TENSOR_PUBLIC_COUNT] = {
        [TENSOR_Q] = offsetof(vkattn_tensors, q),
        [TENSOR_K] = offsetof(vkattn_tensors, k),
        [TENSOR_V] = offsetof(vkattn_tensors, v),
        [TENSOR_O] = offsetof(vkattn_tensors, o),
        [TENSOR_LSE] = offsetof(vkattn_tensors, lse),
        [TENSOR_WEIGHTS] = offsetof(vkattn_tensors, weights),
        [TENSOR_MASK] = offsetof(vkattn_tensors, mask),
        [TENSOR_BIAS] = offsetof(vkattn_tensors, bias),
        [TENSOR_ALIBI] = offsetof(vkattn_tensors, alibi),
        [TENSOR_SINKS] = offsetof(vkattn_tensors, sinks),
        [TENSOR_KV_LENGTHS] = offsetof(vkattn_tensors, kv_lengths),
        [TENSOR_Q_LENGTHS] = offsetof(vkattn_tensors, q_lengths),
        [TENSOR_PREFIX] = offsetof(vkattn_tensors, prefix),
        [TENSOR_Q_SEGMENTS] = offsetof(vkattn_tensors, q_segments),
        [TENSOR_KV_SEGMENTS] = offsetof(vkattn_tensors, kv_segments),
    };
    const void *pointer;
    memcpy(&pointer, (const char *)tensors + offsets[id], sizeof pointer);
    return pointer;
}

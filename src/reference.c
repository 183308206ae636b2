/* Attention in double: the formulas of vkattn.h, one function each, and beside every result the error that
 * docs/numerics.md allows. Shares no code with the kernels. */
#include "dtype.h"
#include "problem.h"
#include "status.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static const double ln_2 = 0.69314718055994530942;
static const double u32 = 0x1p-24; /* unit roundoff of f32 */

struct call {
    struct problem problem;
    vkattn_tensors in;
    vkattn_lengths lengths;
    vkattn_dtype p_type;
    vkattn_reference out;
};

/* One batch member and key/value head: its own clamped lengths and its decoded keys and values. */
struct member {
    uint32_t b, g;
    uint32_t len_q, len_kv, prefix;
    float *k; /* [len_kv][dim_qk] */
    float *v; /* [dim_v][len_kv] */
};

struct row {
    const struct member *of;
    uint32_t h, i;
    float q[VKATTN_MAX_DIM];
};

/* A key that the row sees. */
struct key {
    uint32_t j;
    double score;      /* s */
    double p;          /* exp(s - m) */
    double error;      /* of the score in an f32 kernel */
    double p_rounding; /* of p to the kernel's p_type */
    bool beyond_f32;
};

/* A row's softmax over the keys that it sees, and the sink. */
struct softmax {
    const struct key *keys;
    uint32_t count;
    double m, l, lse;
    double error; /* e of docs/numerics.md */
    bool beyond_f32;
};

/* ---- Elements -------------------------------------------------------------------------------------------------- */

static uint64_t offset(const struct call *call, enum tensor_id id, uint32_t b, uint32_t h, uint32_t row)
{
    const struct tensor *t = &call->problem.tensors[id];
    return b * t->batch_stride + h * t->head_stride + row * t->row_stride;
}

static float element(const struct call *call, enum tensor_id id, vkattn_dtype type, uint64_t index)
{
    const char *bytes = vkattn_tensors_get(&call->in, id);
    return vkattn_decode(type, bytes + index * vkattn_dtype_size(type));
}

static double per_head(const struct call *call, enum tensor_id id, uint32_t h)
{
    return (double)element(call, id, VKATTN_F32, offset(call, id, 0, h, 0));
}

static int32_t integer(const struct call *call, enum tensor_id id, uint32_t b, uint32_t index)
{
    const int32_t *values = vkattn_tensors_get(&call->in, id);
    return values[offset(call, id, b, 0, 0) + index];
}

static bool has(const struct call *call, uint32_t flag)
{
    return (call->problem.flags & flag) != 0;
}

/* A member's length or prefix, clamped to the tensor as on a device; the whole of it when the flag is not set. */
static uint32_t clamped(const struct call *call, uint32_t flag, enum tensor_id id, uint32_t b, uint32_t whole)
{
    if (!has(call, flag))
        return whole;
    const int32_t length = integer(call, id, b, 0);
    return length < 0 ? 0 : (uint32_t)length < whole ? (uint32_t)length : whole;
}

static double bias(const struct call *call, const struct row *row, uint32_t j)
{
    if (!has(call, VKATTN_BIAS))
        return 0;
    const uint64_t first = offset(call, TENSOR_BIAS, row->of->b, row->h, row->i);
    return (double)element(call, TENSOR_BIAS, call->problem.bias_type, first + j);
}

/* j - i' */
static int64_t distance(const struct call *call, const struct row *row, uint32_t j)
{
    const int64_t shift = call->problem.bottom_right ? (int64_t)row->of->len_kv - row->of->len_q : 0;
    return (int64_t)j - (row->i + shift);
}

static double alibi(const struct call *call, const struct row *row, uint32_t j)
{
    if (!has(call, VKATTN_ALIBI))
        return 0;
    return per_head(call, TENSOR_ALIBI, row->h) * fabs((double)distance(call, row, j));
}

static double sink(const struct call *call, uint32_t h)
{
    return has(call, VKATTN_SINKS) ? per_head(call, TENSOR_SINKS, h) : -(double)INFINITY;
}

/* ---- Visibility ------------------------------------------------------------------------------------------------ */

static bool in_band(const struct call *call, const struct row *row, uint32_t j)
{
    const int64_t d = distance(call, row, j);
    return -(int64_t)call->problem.left <= d && d <= call->problem.right;
}

static bool in_prefix(const struct call *call, const struct row *row, uint32_t j)
{
    return has(call, VKATTN_PREFIX) && j < row->of->prefix;
}

static bool same_segment(const struct call *call, const struct row *row, uint32_t j)
{
    return !has(call, VKATTN_SEGMENTS) ||
           integer(call, TENSOR_Q_SEGMENTS, row->of->b, row->i) == integer(call, TENSOR_KV_SEGMENTS, row->of->b, j);
}

static bool mask_shows(const struct call *call, const struct row *row, uint32_t j)
{
    if (call->problem.mask_kind == VKATTN_MASK_NONE)
        return true;
    const unsigned char *mask = call->in.mask;
    const uint64_t at = offset(call, TENSOR_MASK, row->of->b, row->h, row->i) + j;
    const bool is_true = call->problem.mask_kind == VKATTN_MASK_BITS ? mask[at / 8] >> at % 8 & 1 : mask[at] != 0;
    return is_true != call->problem.mask_ignores;
}

static bool visible(const struct call *call, const struct row *row, uint32_t j)
{
    return row->i < row->of->len_q && j < row->of->len_kv && (in_band(call, row, j) || in_prefix(call, row, j)) &&
           same_segment(call, row, j) && mask_shows(call, row, j) && bias(call, row, j) != -(double)INFINITY;
}

/* ---- What a storage type may lose (docs/numerics.md) ----------------------------------------------------------- */

static const struct format {
    double roundoff;  /* half an ulp, relative */
    double half_step; /* half the distance of its subnormals */
    double overflow;  /* from here on a value rounds to infinity */
} formats[] = {
    [VKATTN_F32] = {0x1p-24, 0x1p-150, 0x1.ffffffp127},
    [VKATTN_F16] = {0x1p-11, 0x1p-25, 65520},
    [VKATTN_BF16] = {0x1p-8, 0x1p-134, 0x1.ffp127},
};

static double rounding(vkattn_dtype type, double value)
{
    return fmax(formats[type].roundoff * fabs(value), formats[type].half_step);
}

/* A finite magnitude that rounds to infinity; what the inputs made infinite is not an overflow. */
static bool overflows(vkattn_dtype type, double magnitude)
{
    return isfinite(magnitude) && magnitude >= formats[type].overflow;
}

/* The distance of f32 values around x. */
static double ulp(double x)
{
    int exponent;
    frexp(fmax(fabs(x), (double)FLT_MIN), &exponent);
    return ldexp(1, exponent - FLT_MANT_DIG);
}

/* What a kernel may be off where the reference says `value`: a NaN row must be NaN, and where f32 cannot answer
 * anything goes. */
static double allowed(double value, double error, bool beyond_f32)
{
    if (beyond_f32)
        return (double)INFINITY;
    if (isnan(value))
        return 0;
    return isnan(error) ? (double)INFINITY : error;
}

/* ---- Scores and softmax ---------------------------------------------------------------------------------------- */

static double error_per_magnitude(const struct call *call)
{
    return (4 + sqrt(call->problem.dim_qk)) * u32;
}

/* s, as the formula says, and how far an f32 kernel may be from it. */
static struct key score(const struct call *call, const struct row *row, uint32_t j)
{
    const struct problem *p = &call->problem;
    const float *k = row->of->k + (size_t)j * p->dim_qk;
    double dot = 0, magnitude = 0, flushed = 0, largest_q = 0;
    for (uint32_t r = 0; r < p->dim_qk; r++) {
        const double q_r = (double)row->q[r], k_r = (double)k[r];
        dot += q_r * k_r;
        magnitude += fabs(q_r * k_r);
        flushed += (double)FLT_MIN * (fabs(q_r) + fabs(k_r) + 1);
        largest_q = fmax(largest_q, fabs(q_r));
    }
    const double scale = (double)p->scale, softcap = (double)p->softcap;
    const double biased = bias(call, row, j), slanted = alibi(call, row, j);
    double s = scale * dot;
    if (softcap > 0)
        s = softcap * tanh(s / softcap);
    s = s + biased - slanted;

    /* The scale meets Q, or the sum: neither form may overflow or flush unnoticed. */
    const double gain = fmax(1, fabs(scale)), added = fabs(biased) + fabs(slanted);
    return (struct key){
        .j = j,
        .score = s,
        .error = error_per_magnitude(call) * (fabs(scale) * magnitude + added) + gain * flushed,
        .beyond_f32 = overflows(VKATTN_F32, gain * fmax(magnitude, largest_q) + added),
    };
}

/* The larger one; a NaN if there is one. */
static double max_or_nan(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

/* A key carries weight when, lifted by its own error, it would weigh at least FLT_MIN: below that f32 may flush it. */
static bool carries_weight(double score, double error, double lse)
{
    return score + error - lse >= log((double)FLT_MIN);
}

static struct softmax softmax(const struct call *call, const struct row *row, struct key *keys, uint32_t count)
{
    const double sink_logit = sink(call, row->h);
    struct softmax s = {.keys = keys, .count = count, .m = sink_logit};
    for (uint32_t n = 0; n < count; n++)
        s.m = max_or_nan(s.m, keys[n].score);
    for (uint32_t n = 0; n < count; n++) {
        struct key *key = &keys[n];
        key->p = exp(key->score - s.m);
        key->p_rounding = call->p_type == VKATTN_F32 ? 0 : fmin(key->p, rounding(call->p_type, key->p));
        s.l += key->p;
        s.beyond_f32 |= key->beyond_f32;
    }
    if (has(call, VKATTN_SINKS))
        s.l += exp(sink_logit - s.m);
    s.lse = s.m + log(s.l);
    for (uint32_t n = 0; n < count; n++)
        if (carries_weight(keys[n].score, keys[n].error, s.lse))
            s.error = fmax(s.error, keys[n].error);
    const double sink_error = error_per_magnitude(call) * fabs(sink_logit);
    if (has(call, VKATTN_SINKS) && carries_weight(sink_logit, sink_error, s.lse))
        s.error = fmax(s.error, sink_error);
    return s;
}

/* ---- Outputs --------------------------------------------------------------------------------------------------- */

static void put(double *array, uint64_t index, double value)
{
    if (array)
        array[index] = value;
}

static double lse_error(const struct softmax *s)
{
    return s->error + 0x1p-19 + 4 * ulp(s->lse);
}

static void put_lse(const struct call *call, uint64_t index, const struct softmax *s)
{
    double lse = s->lse, error = lse_error(s);
    if (has(call, VKATTN_LSE_BASE_2)) {
        lse /= ln_2;
        error = error / ln_2 + ulp(lse); /* the factor, and the product with it, are rounded */
    }
    put(call->out.lse, index, lse);
    put(call->out.lse_bound, index, allowed(lse, isinf(lse) ? 0 : error, s->beyond_f32));
}

/* W = exp(s - LSE) of a stored LSE: the errors of both, of the subtraction, and 3 + 2 |x| ulp of exp. */
static double weight_error(const struct key *key, const struct softmax *s, double weight)
{
    if (weight == 0)
        return (double)FLT_MIN;
    const double exponent = s->error + lse_error(s) + (8 + 6 * fabs(key->score - s->lse)) * u32;
    return weight * expm1(exponent) + (double)FLT_MIN;
}

/* `index`: of the row's first pair. */
static void put_weights(const struct call *call, uint64_t index, const struct softmax *s)
{
    for (uint32_t j = 0; j < call->lengths.len_kv; j++) {
        put(call->out.weights, index + j, 0);
        put(call->out.weights_bound, index + j, 0);
    }
    for (uint32_t n = 0; n < s->count; n++) {
        const struct key *key = &s->keys[n];
        const double weight = key->p / s->l;
        put(call->out.weights, index + key->j, weight);
        put(call->out.weights_bound, index + key->j, allowed(weight, weight_error(key, s, weight), s->beyond_f32));
    }
}

/* One column of V under one row's weights. */
struct column {
    double pv;         /* sum p V */
    double pv_abs;     /* sum p |V| */
    double p_rounding; /* sum of p's rounding times |V| */
    double v_abs;      /* sum |V| */
    double low, high;  /* of V, and of the sink's 0 */
};

static struct column column(const struct call *call, const struct row *row, const struct softmax *s, uint32_t r)
{
    const float *v = row->of->v + (size_t)r * row->of->len_kv;
    const double edge = has(call, VKATTN_SINKS) ? 0 : (double)INFINITY;
    struct column c = {.low = edge, .high = -edge};
    for (uint32_t n = 0; n < s->count; n++) {
        const struct key *key = &s->keys[n];
        const double x = (double)v[key->j], magnitude = fabs(x);
        c.pv += key->p * x;
        c.pv_abs += key->p * magnitude;
        c.p_rounding += key->p_rounding * magnitude;
        c.v_abs += magnitude;
        c.low = x < c.low ? x : c.low;
        c.high = x > c.high ? x : c.high;
    }
    return c;
}

static double o_error(const struct call *call, const struct softmax *s, const struct column *c, double o)
{
    const double a = c->pv_abs / s->l;
    const double spread = fmax(c->high - o, o - c->low); /* O is a mean of V, however wrong the scores */
    const double flushed = (double)FLT_MIN * (2 + 2 * (double)s->count + c->v_abs);
    const double error =
        c->p_rounding / s->l + fmin(2 * s->error * a, spread) + (24 + 2 * sqrt(s->count)) * u32 * a + flushed;
    if (overflows(call->problem.o_type, fabs(o) + error))
        return (double)INFINITY;
    return rounding(call->problem.o_type, o) + error;
}

/* `index`: of the row's first element. */
static void put_o(const struct call *call, const struct row *row, uint64_t index, const struct softmax *s)
{
    for (uint32_t r = 0; r < call->problem.dim_v; r++) {
        const struct column c = column(call, row, s, r);
        const double o = c.pv / s->l;
        put(call->out.o, index + r, o);
        put(call->out.o_bound, index + r,
            allowed(o, o_error(call, s, &c, o), s->beyond_f32 || overflows(VKATTN_F32, c.v_abs)));
    }
}

static void put_empty_o(const struct call *call, uint64_t index)
{
    for (uint32_t r = 0; r < call->problem.dim_v; r++) {
        put(call->out.o, index + r, 0);
        put(call->out.o_bound, index + r, 0);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

static uint32_t gather(const struct call *call, const struct row *row, struct key *keys)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < row->of->len_kv; j++)
        if (visible(call, row, j))
            keys[count++] = score(call, row, j);
    return count;
}

/* Row i of head h; false when there is no memory. */
static bool attend_row(const struct call *call, const struct member *member, uint32_t h, uint32_t i)
{
    const struct problem *p = &call->problem;
    struct key *keys = calloc((size_t)member->len_kv + 1, sizeof *keys);
    if (!keys)
        return false;
    struct row row = {.of = member, .h = h, .i = i};
    for (uint32_t r = 0; r < p->dim_qk; r++)
        row.q[r] = element(call, TENSOR_Q, p->q_type, offset(call, TENSOR_Q, member->b, h, i) + r);

    const uint64_t index = ((uint64_t)member->b * p->heads + h) * call->lengths.len_q + i;
    const uint32_t count = gather(call, &row, keys);
    struct softmax s = {.lse = sink(call, h)};
    if (count > 0) {
        s = softmax(call, &row, keys, count);
        put_o(call, &row, index * p->dim_v, &s);
    } else {
        put_empty_o(call, index * p->dim_v);
    }
    put_lse(call, index, &s);
    put_weights(call, index * call->lengths.len_kv, &s);
    free(keys);
    return true;
}

/* Keys past the member's length are not read: they may lie beyond the end of a ragged buffer. */
static void decode(const struct call *call, struct member *member)
{
    const struct problem *p = &call->problem;
    for (uint32_t j = 0; j < member->len_kv; j++) {
        const uint64_t k = offset(call, TENSOR_K, member->b, member->g, j);
        const uint64_t v = offset(call, TENSOR_V, member->b, member->g, j);
        for (uint32_t r = 0; r < p->dim_qk; r++)
            member->k[(size_t)j * p->dim_qk + r] = element(call, TENSOR_K, p->kv_type, k + r);
        for (uint32_t r = 0; r < p->dim_v; r++)
            member->v[(size_t)r * member->len_kv + j] = element(call, TENSOR_V, p->kv_type, v + r);
    }
}

static bool attend_rows(const struct call *call, const struct member *member)
{
    const uint32_t group = call->problem.group, len_q = call->lengths.len_q;
    const int64_t rows = (int64_t)group * len_q;
    bool failed = false;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) reduction(|| : failed) if (rows * member->len_kv > 4096)
#endif
    for (int64_t n = 0; n < rows; n++) {
        const uint32_t h = member->g * group + (uint32_t)(n / len_q);
        failed = !attend_row(call, member, h, (uint32_t)(n % len_q)) || failed;
    }
    return !failed;
}

static bool attend_member(const struct call *call, uint32_t b, uint32_t g)
{
    const uint32_t len_q = call->lengths.len_q, len_kv = call->lengths.len_kv;
    struct member member = {
        .b = b,
        .g = g,
        .len_q = clamped(call, VKATTN_Q_LENGTHS, TENSOR_Q_LENGTHS, b, len_q),
        .len_kv = clamped(call, VKATTN_KV_LENGTHS, TENSOR_KV_LENGTHS, b, len_kv),
        .prefix = clamped(call, VKATTN_PREFIX, TENSOR_PREFIX, b, len_kv),
    };
    member.k = calloc((size_t)member.len_kv + 1, call->problem.dim_qk * sizeof *member.k);
    member.v = calloc((size_t)member.len_kv + 1, call->problem.dim_v * sizeof *member.v);
    bool done = member.k && member.v;
    if (done) {
        decode(call, &member);
        done = attend_rows(call, &member);
    }
    free(member.k);
    free(member.v);
    return done;
}

static vkattn_status require_inputs(const struct call *call)
{
    for (int id = 0; id < TENSOR_COUNT; id++) {
        uint64_t bits = 0;
        if (call->problem.tensors[id].output)
            continue;
        REQUIRE(vkattn_tensor_extent(&call->problem, (enum tensor_id)id, &call->lengths, &bits),
                "%s spans more than 2^64 bits", vkattn_tensor_names[id]);
        REQUIRE(bits == 0 || vkattn_tensors_get(&call->in, (enum tensor_id)id), "tensors.%s is NULL",
                vkattn_tensor_names[id]);
    }
    return VKATTN_OK;
}

vkattn_status vkattn_reference_forward_sized(const vkattn_problem *problem, size_t problem_size,
                                             const vkattn_tensors *tensors, size_t tensors_size,
                                             const vkattn_lengths *lengths, vkattn_dtype p_type,
                                             const vkattn_reference *out, size_t out_size)
{
    struct call call = {.p_type = p_type};
    TRY(vkattn_problem_canonical(problem, problem_size, &call.problem));
    TRY(vkattn_copy_sized(&call.in, sizeof call.in, tensors, tensors_size, "tensors"));
    TRY(vkattn_copy_sized(&call.out, sizeof call.out, out, out_size, "out"));
    TRY(vkattn_problem_lengths(&call.problem, lengths, &call.lengths));
    REQUIRE((int)p_type >= VKATTN_F32 && (int)p_type <= VKATTN_BF16, "p_type is %d: not a value of its enum",
            (int)p_type);
    TRY(require_inputs(&call));
    for (uint32_t b = 0; b < call.problem.batch; b++)
        for (uint32_t g = 0; g < call.problem.kv_heads; g++)
            if (!attend_member(&call, b, g))
                return vkattn_fail(VKATTN_NO_MEMORY, "no memory for one head of K and V and a row of scores");
    return VKATTN_OK;
}

/* ---- Merging ---------------------------------------------------------------------------------------------------- */

struct merge_call {
    struct problem problem;
    vkattn_merge_tensors in;
    vkattn_lengths lengths;
    vkattn_reference out;
    double unit; /* of an LSE in natural logarithms */
};

/* One row of one part. */
struct part {
    const char *o; /* its first element */
    double lse;
    double weight; /* of O in the result */
    double error;  /* of the weight in an f32 kernel, relative */
};

static struct part part_of(const struct merge_call *call, const void *o, enum merge_tensor_id o_id, const float *lse,
                           enum merge_tensor_id lse_id, uint32_t b, uint32_t h, uint32_t i)
{
    const struct tensor *to = &call->problem.tensors[o_id], *tl = &call->problem.tensors[lse_id];
    const uint64_t first = b * to->batch_stride + h * to->head_stride + i * to->row_stride;
    return (struct part){.o = (const char *)o + first * vkattn_dtype_size(call->problem.kv_type),
                         .lse =
                             (double)lse[b * tl->batch_stride + h * tl->head_stride + i * tl->row_stride] * call->unit};
}

static bool is_empty(const struct part *part)
{
    return part->lse == -(double)INFINITY;
}

/* Weights of both parts; returns the LSE. exp is off by 3 + 2 |x| ulp, x and its product with the unit are rounded. */
static double weigh(struct part parts[2])
{
    const double m = max_or_nan(parts[0].lse, parts[1].lse);
    if (is_empty(&parts[0]) && is_empty(&parts[1]))
        return m;
    const double l = exp(parts[0].lse - m) + exp(parts[1].lse - m);
    for (int n = 0; n < 2; n++) {
        parts[n].weight = exp(parts[n].lse - m) / l;
        parts[n].error = is_empty(&parts[n]) ? 0 : (8 + 8 * (m - parts[n].lse)) * u32;
    }
    return m + log(l);
}

/* Element r of the merged row, and what a kernel may be off: each weight by its own error, by that of l, and by the
 * roundings of products, sum and division. */
static void put_merged(const struct merge_call *call, const struct part parts[2], uint32_t r, bool poisoned,
                       uint64_t index)
{
    const vkattn_dtype type = call->problem.kv_type;
    double o = 0, magnitude = 0, error = 0, l_error = 0;
    bool infinite = false;
    for (int n = 0; n < 2; n++) {
        if (is_empty(&parts[n]))
            continue;
        const double x = (double)vkattn_decode(type, parts[n].o + r * vkattn_dtype_size(type));
        const double weighted = parts[n].weight * fabs(x);
        o += parts[n].weight * x;
        magnitude += weighted;
        error += weighted * parts[n].error + (double)FLT_MIN * (1 + fabs(x));
        l_error += parts[n].weight * parts[n].error;
        infinite |= isinf(x);
    }
    error += magnitude * (l_error + 8 * u32);
    const bool beyond =
        infinite || overflows(VKATTN_F32, magnitude) || overflows(call->problem.o_type, fabs(o) + error);
    o = poisoned ? (double)NAN : o;
    put(call->out.o, index, o);
    put(call->out.o_bound, index, allowed(o, rounding(call->problem.o_type, o) + error, beyond && !poisoned));
}

static void merge_row(const struct merge_call *call, uint32_t b, uint32_t h, uint32_t i)
{
    const struct problem *p = &call->problem;
    struct part parts[2] = {
        part_of(call, call->in.first_o, TENSOR_FIRST_O, call->in.first_lse, TENSOR_FIRST_LSE, b, h, i),
        part_of(call, call->in.second_o, TENSOR_SECOND_O, call->in.second_lse, TENSOR_SECOND_LSE, b, h, i)};
    const uint64_t index = ((uint64_t)b * p->heads + h) * call->lengths.len_q + i;
    const double largest = max_or_nan(parts[0].lse, parts[1].lse);
    const bool poisoned = isnan(largest) || isnan(parts[1].lse) || largest == (double)INFINITY;
    const double lse = poisoned ? (double)NAN : weigh(parts);
    for (uint32_t r = 0; r < p->dim_v; r++)
        put_merged(call, parts, r, poisoned, index * p->dim_v + r);
    const double error = (0x1p-19 + 4 * ulp(lse)) / call->unit + (call->unit < 1 ? ulp(lse / call->unit) : 0);
    put(call->out.lse, index, lse / call->unit);
    put(call->out.lse_bound, index, allowed(lse, isinf(lse) ? 0 : error, false));
}

vkattn_status vkattn_reference_merge_sized(const vkattn_merge *merge, size_t merge_size,
                                           const vkattn_merge_tensors *tensors, size_t tensors_size,
                                           const vkattn_lengths *lengths, const vkattn_reference *out, size_t out_size)
{
    struct merge_call call;
    TRY(vkattn_merge_canonical(merge, merge_size, &call.problem));
    TRY(vkattn_copy_sized(&call.in, sizeof call.in, tensors, tensors_size, "tensors"));
    TRY(vkattn_copy_sized(&call.out, sizeof call.out, out, out_size, "out"));
    TRY(vkattn_problem_lengths(&call.problem, lengths, &call.lengths));
    call.unit = call.problem.flags & VKATTN_LSE_BASE_2 ? ln_2 : 1;
    const bool empty = call.lengths.len_q == 0;
    REQUIRE(empty || call.in.first_o, "tensors.first_o is NULL");
    REQUIRE(empty || call.in.first_lse, "tensors.first_lse is NULL");
    REQUIRE(empty || call.in.second_o, "tensors.second_o is NULL");
    REQUIRE(empty || call.in.second_lse, "tensors.second_lse is NULL");
    for (uint32_t b = 0; b < call.problem.batch; b++)
        for (uint32_t h = 0; h < call.problem.heads; h++)
            for (uint32_t i = 0; i < call.lengths.len_q; i++)
                merge_row(&call, b, h, i);
    return VKATTN_OK;
}

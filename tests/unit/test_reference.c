/* The reference against published numbers, identities and brute force, and its bounds against simulated kernels. */
#include "dtype.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- Memory, random numbers, comparisons ----------------------------------------------------------------------- */

static void *blocks[16384];
static size_t block_count;

static void release(void)
{
    while (block_count > 0)
        free(blocks[--block_count]);
}

TestSuite(reference, .fini = release, .timeout = 120);

/* Memory until the end of the test, full of garbage: what a call should write must be written. */
static void *take(size_t bytes)
{
    void *block = malloc(bytes + 1);
    cr_assert(block && block_count < COUNT(blocks));
    blocks[block_count++] = block;
    return memset(block, 0xa5, bytes + 1);
}

static uint64_t random_state = 1;

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_bits(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(double low, double high)
{
    return low + (high - low) * ((double)(random_bits() >> 11) * 0x1p-53);
}

static uint32_t below(uint32_t limit)
{
    return (uint32_t)(random_bits() % limit);
}

/* Box and Muller 1958. */
static float gaussian(void)
{
    const double radius = sqrt(-2 * log(1 - uniform(0, 1)));
    return (float)(radius * cos(6.283185307179586 * uniform(0, 1)));
}

static float *gaussians(size_t count, double sigma)
{
    float *values = take(count * sizeof *values);
    for (size_t n = 0; n < count; n++)
        values[n] = (float)sigma * gaussian();
    return values;
}

static float *constants(size_t count, float value)
{
    float *values = take(count * sizeof *values);
    for (size_t n = 0; n < count; n++)
        values[n] = value;
    return values;
}

static void *encoded(vkattn_dtype type, const float *values, size_t count)
{
    char *elements = take(count * vkattn_dtype_size(type));
    for (size_t n = 0; n < count; n++)
        vkattn_encode(type, values[n], elements + n * vkattn_dtype_size(type));
    return elements;
}

static void expect_near(const double *got, const double *expected, size_t count, double tolerance)
{
    for (size_t n = 0; n < count; n++)
        cr_assert(got[n] == expected[n] || (isnan(got[n]) && isnan(expected[n])) ||
                      fabs(got[n] - expected[n]) <= tolerance,
                  "element %zu is %.17g, not %.17g", n, got[n], expected[n]);
}

static void expect(const double *got, size_t count, const double *expected)
{
    expect_near(got, expected, count, 1e-12);
}

#define EXPECT(got, ...) expect(got, COUNT(((const double[]){__VA_ARGS__})), (const double[]){__VA_ARGS__})

/* ---- Problems -------------------------------------------------------------------------------------------------- */

static vkattn_problem sized(uint32_t batch, uint32_t heads, uint32_t len_q, uint32_t len_kv, uint32_t dim)
{
    return (vkattn_problem){.batch = batch,
                            .heads = heads,
                            .kv_heads = heads,
                            .len_q = len_q,
                            .len_kv = len_kv,
                            .dim_qk = dim,
                            .dim_v = dim};
}

static size_t rows_of(const vkattn_problem *p)
{
    return (size_t)p->batch * p->heads * p->len_q;
}

static size_t pairs_of(const vkattn_problem *p)
{
    return rows_of(p) * p->len_kv;
}

static size_t keys_of(const vkattn_problem *p)
{
    return (size_t)p->batch * p->kv_heads * p->len_kv;
}

static vkattn_tensors gaussian_tensors(const vkattn_problem *p)
{
    const float *q = gaussians(rows_of(p) * p->dim_qk, 1);
    const float *k = gaussians(keys_of(p) * p->dim_qk, 1);
    const float *v = gaussians(keys_of(p) * p->dim_v, 1);
    return (vkattn_tensors){.q = q, .k = k, .v = v};
}

/* Q = 0, so that weights are uniform, and V as given. */
static vkattn_tensors uniform_tensors(const vkattn_problem *p, const float *v)
{
    return (vkattn_tensors){
        .q = constants(rows_of(p) * p->dim_qk, 0), .k = constants(keys_of(p) * p->dim_qk, 1), .v = v};
}

static vkattn_reference attend_as(const vkattn_problem *p, const vkattn_tensors *t, const vkattn_lengths *lengths,
                                  vkattn_dtype p_type)
{
    const size_t o = rows_of(p) * p->dim_v * sizeof(double), pairs = pairs_of(p) * sizeof(double);
    const size_t rows = rows_of(p) * sizeof(double);
    const vkattn_reference r = {take(o), take(rows), take(pairs), take(o), take(rows), take(pairs)};
    const vkattn_status status = vkattn_reference_forward(p, t, lengths, p_type, &r);
    cr_assert(status == VKATTN_OK, "%s", vkattn_last_error());
    return r;
}

static vkattn_reference attend(const vkattn_problem *p, const vkattn_tensors *t)
{
    return attend_as(p, t, NULL, VKATTN_F32);
}

static void expect_same(const vkattn_problem *p, const vkattn_reference *a, const vkattn_reference *b, double tolerance)
{
    expect_near(a->o, b->o, rows_of(p) * p->dim_v, tolerance);
    expect_near(a->lse, b->lse, rows_of(p), tolerance);
    expect_near(a->weights, b->weights, pairs_of(p), tolerance);
}

/* ---- Published numbers ----------------------------------------------------------------------------------------- */

Test(reference, softmax_of_four_dimensions)
{
    static const float q[] = {1, -1, 2, 0.5f}, k[] = {2, 0, 1, -1, 0, 1, -1, 2, 1, 1, 1, 1};
    vkattn_problem p = sized(1, 1, 1, 3, 4);
    const vkattn_tensors t = {.q = q, .k = k, .v = k};
    const vkattn_reference scaled = attend(&p, &t);
    p.scale = 1;
    const vkattn_reference raw = attend(&p, &t);
    expect_near(raw.weights, (const double[]){0.729, 0.003, 0.268}, 3, 5e-4);
    expect_near(scaled.weights, (const double[]){0.599, 0.038, 0.363}, 3, 5e-4);
    for (size_t j = 0; j < 3; j++) {
        cr_assert_float_eq(log(raw.weights[j]) + *raw.lse, ((const double[]){3.5, -2, 2.5})[j], 1e-12);
        cr_assert_float_eq(log(scaled.weights[j]) + *scaled.lse, ((const double[]){1.75, -1, 1.25})[j], 1e-12);
    }
}

/* With one key the LSE is the score. */
Test(reference, variance_of_scores_is_the_width)
{
    for (uint32_t dim = 8; dim <= 512; dim *= dim == 8 ? 4 : dim == 32 ? 2 : 8) {
        vkattn_problem p = sized(4000, 1, 1, 1, dim);
        const vkattn_tensors t = gaussian_tensors(&p);
        double square[2] = {0};
        for (int raw = 0; raw < 2; raw++) {
            p.scale = raw ? 1 : 0;
            const double *score = attend(&p, &t).lse;
            for (size_t n = 0; n < p.batch; n++)
                square[raw] += score[n] * score[n] / p.batch;
        }
        cr_assert_float_eq(square[0], 1, 0.1);
        cr_assert_float_eq(square[1] / dim, 1, 0.1);
        release();
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

enum { DRAWS = 400, KEYS = 50 };

static void expect_peak(uint32_t dim, float scale, double largest, double entropy, double tolerance)
{
    vkattn_problem p = sized(DRAWS, 1, 1, KEYS, dim);
    p.scale = scale;
    const vkattn_tensors t = gaussian_tensors(&p);
    const double *w = attend(&p, &t).weights;
    double top[DRAWS] = {0}, spread[DRAWS] = {0};
    for (size_t n = 0; n < (size_t)DRAWS * KEYS; n++) {
        top[n / KEYS] = fmax(top[n / KEYS], w[n]);
        spread[n / KEYS] -= w[n] > 0 ? w[n] * log(w[n]) : 0;
    }
    const double peak = median(top, DRAWS), nats = median(spread, DRAWS);
    cr_assert(fabs(peak - largest) <= tolerance && fabs(nats - entropy) <= 5 * tolerance,
              "d = %u: weight %.3f, entropy %.3f", dim, peak, nats);
    release();
}

Test(reference, unscaled_scores_saturate)
{
    expect_peak(8, 1, 0.40, 2.05, 0.04);
    expect_peak(64, 1, 0.85, 0.56, 0.04);
    expect_peak(512, 1, 1.00, 0.01, 0.04);
    expect_peak(8, 0, 0.12, 3.45, 0.04);
    expect_peak(64, 0, 0.12, 3.45, 0.04);
    expect_peak(512, 0, 0.12, 3.45, 0.04);
}

/* Norm of diag(p) - p p^T; 1 - p without cancellation. */
static double jacobian_norm(const double *p, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double others = 0;
        for (size_t j = 0; j < count; j++)
            if (j != i) {
                others += p[j];
                sum += p[i] * p[i] * p[j] * p[j];
            }
        sum += p[i] * others * p[i] * others;
    }
    return sqrt(sum);
}

Test(reference, saturated_softmax_has_no_gradient)
{
    static const float factors[] = {1, 8, 32, 128};
    vkattn_problem p = sized(1, 1, 4, 16, 1);
    p.scale = 1;
    vkattn_tensors t = gaussian_tensors(&p);
    t.q = factors;
    const double *w = attend(&p, &t).weights;
    double norm[4];
    for (size_t i = 0; i < 4; i++)
        norm[i] = jacobian_norm(w + i * 16, 16);
    cr_assert(norm[0] > 0.1 && norm[0] < 0.5 && norm[1] < norm[0] && norm[2] < norm[1] / 10 && norm[3] < norm[2] * 1e-6,
              "%g %g %g %g", norm[0], norm[1], norm[2], norm[3]);
}

Test(reference, minus_infinity_gets_no_weight)
{
    static const float q[] = {1}, k[] = {0, 0, 0}, v[] = {1, 2, NAN}, bias[] = {2, 1, -INFINITY};
    vkattn_problem p = sized(1, 1, 1, 3, 1);
    p.flags = VKATTN_BIAS;
    const vkattn_tensors t = {.q = q, .k = k, .v = v, .bias = bias};
    const vkattn_reference r = attend(&p, &t);
    expect_near(r.weights, (const double[]){0.731, 0.269, 0}, 3, 5e-4);
    cr_assert(r.weights[2] == 0 && r.weights_bound[2] == 0);
    cr_assert_float_eq(*r.o, 1 + r.weights[1], 1e-12);
}

/* Packed rows of two heads, read as two heads, as one wide head, and wrongly as [heads, rows]. */
Test(reference, one_wide_head_is_not_two_narrow_ones)
{
    vkattn_problem wide = sized(1, 1, 5, 6, 8), narrow = sized(1, 2, 5, 6, 4);
    narrow.q.order = narrow.k.order = narrow.v.order = VKATTN_BTHD;
    const vkattn_tensors t = gaussian_tensors(&wide);
    const vkattn_reference one = attend(&wide, &t), two = attend(&narrow, &t);
    cr_assert(fabs(one.o[0] - two.o[0]) > 1e-3);

    vkattn_problem through_heads = wide;
    through_heads.q.order = through_heads.k.order = through_heads.v.order = VKATTN_BTHD;
    const vkattn_reference same = attend(&through_heads, &t);
    expect_same(&wide, &one, &same, 0);

    narrow.q.order = narrow.k.order = narrow.v.order = VKATTN_BHTD;
    const vkattn_reference viewed = attend(&narrow, &t);
    cr_assert(fabs(viewed.o[0] - two.o[0]) > 1e-3);
}

/* Three hidden keys and one whose score is the number that others use for "hidden". */
Test(reference, lowest_finite_score_is_a_score)
{
    static const float bias[] = {-0x1.fffffep127f, -INFINITY, -INFINITY, -INFINITY}, v[] = {3, 5, 7, 9};
    vkattn_problem p = sized(1, 1, 1, 4, 1);
    p.flags = VKATTN_BIAS;
    vkattn_tensors t = uniform_tensors(&p, v);
    t.bias = bias;
    const vkattn_reference r = attend(&p, &t);
    EXPECT(r.weights, 1, 0, 0, 0);
    EXPECT(r.o, 3);
    EXPECT(r.lse, (double)bias[0]);
    cr_assert(*r.o_bound < 1e-5, "the weight of a single key does not depend on its score: %g", *r.o_bound);
}

/* ---- Reported faults of peers ---------------------------------------------------------------------------------- */

Test(reference, fully_masked_row_is_zero) /* pytorch #103749 */
{
    vkattn_problem p = sized(1, 1, 6, 6, 4);
    p.mask_kind = VKATTN_MASK_BYTES;
    p.mask_true = VKATTN_TRUE_ATTENDS;
    vkattn_tensors t = gaussian_tensors(&p);
    unsigned char *mask = memset(take(36), 1, 36);
    memset(mask + 30, 0, 6);
    t.mask = mask;
    const vkattn_reference r = attend(&p, &t);
    EXPECT(r.o + 20, 0, 0, 0, 0);
    EXPECT(r.weights + 30, 0, 0, 0, 0, 0, 0);
    EXPECT(r.o_bound + 20, 0, 0, 0, 0);
    cr_assert(r.lse[5] == -(double)INFINITY && r.lse_bound[5] == 0);
    for (size_t i = 0; i < 5; i++)
        cr_assert(isfinite(r.lse[i]));
}

Test(reference, nan_behind_the_mask_stays_there) /* pytorch #101967 */
{
    static const float k[] = {1, 1, 1, 1, NAN, NAN, NAN, NAN}, v[] = {1, 2, 3, 4, NAN, NAN, NAN, NAN};
    static const unsigned char mask[] = {1, 0, 1, 0};
    vkattn_problem p = sized(1, 1, 2, 2, 4);
    p.mask_kind = VKATTN_MASK_BYTES;
    p.mask_true = VKATTN_TRUE_ATTENDS;
    vkattn_tensors t = gaussian_tensors(&p);
    t.k = k, t.v = v, t.mask = mask;
    EXPECT(attend(&p, &t).o, 1, 2, 3, 4, 1, 2, 3, 4);
}

static double *causal_means(uint32_t len_q, uint32_t len_kv, vkattn_align align)
{
    static const float v[] = {1, 2, 3, 4, 5};
    vkattn_problem p = sized(1, 1, len_q, len_kv, 1);
    p.flags = VKATTN_CAUSAL;
    p.align = align;
    const vkattn_tensors t = uniform_tensors(&p, v);
    return attend(&p, &t).o;
}

Test(reference, both_alignments) /* pytorch #108108, flash-attention #1778 */
{
    EXPECT(causal_means(2, 5, VKATTN_BOTTOM_RIGHT), 2.5, 3);
    EXPECT(causal_means(2, 5, VKATTN_TOP_LEFT), 1, 1.5);
    EXPECT(causal_means(5, 2, VKATTN_BOTTOM_RIGHT), 0, 0, 0, 1, 1.5);
    EXPECT(causal_means(5, 2, VKATTN_TOP_LEFT), 1, 1.5, 1.5, 1.5, 1.5);
}

Test(reference, causal_and_mask_intersect) /* onnx PR #8068 */
{
    static const float v[] = {1, 2, 4};
    static const unsigned char hidden[] = {1, 0, 0, 0, 1, 0, 1, 0, 0};
    vkattn_problem p = sized(1, 1, 3, 3, 1);
    p.flags = VKATTN_CAUSAL;
    p.align = VKATTN_TOP_LEFT;
    p.mask_kind = VKATTN_MASK_BYTES;
    p.mask_true = VKATTN_TRUE_IGNORES;
    vkattn_tensors t = uniform_tensors(&p, v);
    t.mask = hidden;
    EXPECT(attend(&p, &t).o, 0, 1, 3);
}

Test(reference, soft_cap_comes_before_the_mask) /* flash-attention PR #1025 */
{
    static const unsigned char mask[] = {1, 0, 1, 0};
    static const float v[] = {1, 50, 3, 50};
    vkattn_problem p = sized(1, 1, 1, 4, 1);
    p.softcap = 1;
    p.mask_kind = VKATTN_MASK_BYTES;
    p.mask_true = VKATTN_TRUE_ATTENDS;
    vkattn_tensors t = uniform_tensors(&p, v);
    t.mask = mask;
    const vkattn_reference r = attend(&p, &t);
    EXPECT(r.weights, 0.5, 0, 0.5, 0);
    EXPECT(r.o, 2);
}

Test(reference, soft_cap_is_applied) /* sgl-kernel-xpu PR #491 */
{
    static const float q[] = {1}, k[] = {10, 0};
    vkattn_problem p = sized(1, 1, 1, 2, 1);
    const vkattn_tensors t = {.q = q, .k = k, .v = k};
    const double plain = attend(&p, &t).weights[1];
    p.softcap = 5;
    const double capped = attend(&p, &t).weights[1];
    cr_assert_float_eq(capped, 1 / (1 + exp(5 * tanh(2.0))), 1e-12);
    cr_assert_float_eq(log(1 / capped - 1), 4.82, 5e-3);
    cr_assert(capped > 10 * plain);
}

Test(reference, sinks_belong_to_their_heads) /* modular #6198 */
{
    const float sinks[] = {0, logf(4), 2 * logf(4), 3 * logf(4)};
    vkattn_problem p = sized(1, 4, 3, 4, 1);
    p.kv_heads = 2;
    p.flags = VKATTN_SINKS;
    vkattn_tensors t = uniform_tensors(&p, constants(8, 1));
    t.sinks = sinks;
    const vkattn_reference r = attend(&p, &t);
    for (size_t n = 0; n < 12; n++) {
        const double share = exp((double)sinks[n / 3]);
        cr_assert_float_eq(r.o[n], 4 / (4 + share), 1e-12);
        cr_assert_float_eq(r.lse[n], log(4 + share), 1e-12);
    }
}

/* One row of a mask for all queries, one plane of a mask or bias for all heads and members: strides of 0. */
Test(reference, masks_and_biases_broadcast) /* stable-diffusion.cpp PR #1625, ncnn PR #6869, onnxruntime #26766 */
{
    vkattn_problem dense = sized(2, 4, 5, 7, 3);
    dense.flags = VKATTN_BIAS;
    dense.mask_kind = VKATTN_MASK_BYTES;
    dense.mask_true = VKATTN_TRUE_ATTENDS;
    vkattn_tensors t = gaussian_tensors(&dense), full = t;
    const float *bias = gaussians(35, 1);
    static const unsigned char mask[] = {1, 0, 1, 1, 0, 1, 1};
    float *full_bias = take(pairs_of(&dense) * sizeof *full_bias);
    unsigned char *full_mask = take(pairs_of(&dense));
    for (size_t n = 0; n < pairs_of(&dense); n++) {
        full_bias[n] = bias[n % 35];
        full_mask[n] = mask[n % 7];
    }
    full.bias = full_bias, full.mask = full_mask;
    t.bias = bias, t.mask = mask;
    vkattn_problem broadcast = dense;
    broadcast.mask = (vkattn_layout){.order = VKATTN_STRIDED};
    broadcast.bias = (vkattn_layout){.order = VKATTN_STRIDED, .row = 7};
    const vkattn_reference a = attend(&dense, &full), b = attend(&broadcast, &t);
    expect_same(&dense, &a, &b, 0);
}

Test(reference, permuted_inputs_are_read_in_place) /* pytorch #181133 */
{
    enum { B = 2, S = 3, H = 3, D = 64 };
    const vkattn_problem dense = sized(B, H, S, S, D);
    const vkattn_tensors t = gaussian_tensors(&dense);
    float *packed = constants((size_t)B * S * 3 * H * D, NAN); /* [B, S, 3, H, D] */
    const float *parts[] = {t.q, t.k, t.v};
    for (size_t n = 0; n < (size_t)B * H * S * D; n++) {
        const size_t r = n % D, s = n / D % S, h = n / D / S % H, b = n / D / S / H;
        for (size_t part = 0; part < 3; part++)
            packed[(((b * S + s) * 3 + part) * H + h) * D + r] = parts[part][n];
    }
    vkattn_problem strided = dense;
    strided.q = strided.k = strided.v =
        (vkattn_layout){.order = VKATTN_STRIDED, .batch = S * 3 * H * D, .head = D, .row = 3 * H * D};
    const vkattn_tensors views = {.q = packed, .k = packed + H * D, .v = packed + 2 * H * D};
    const vkattn_reference a = attend(&dense, &t), b = attend(&strided, &views);
    expect_same(&dense, &a, &b, 0);
}

Test(reference, every_key_counts) /* onnxruntime PR #28520 */
{
    const vkattn_problem p = sized(1, 1, 2, 32, 32);
    float *v = constants(32 * 32, 0);
    for (size_t j = 0; j < 32; j++)
        v[j * 32 + j] = 1;
    const vkattn_tensors t = uniform_tensors(&p, v);
    const double *o = attend(&p, &t).o;
    for (size_t n = 0; n < 64; n++)
        cr_assert(o[n] == 1.0 / 32);
}

Test(reference, refuses_what_is_wrong) /* flash-linear-attention #1029 */
{
    vkattn_problem p = sized(1, 3, 2, 2, 2);
    vkattn_tensors t = gaussian_tensors(&p);
    const vkattn_reference nothing = {0};
    const vkattn_lengths longer = {2, 3};
    cr_assert(vkattn_reference_forward(&p, &t, NULL, VKATTN_F32, &nothing) == VKATTN_OK);
    cr_assert(vkattn_reference_forward(&p, &t, &longer, VKATTN_F32, &nothing) == VKATTN_INVALID);
    cr_assert(vkattn_reference_forward(&p, NULL, NULL, VKATTN_F32, &nothing) == VKATTN_INVALID);
    cr_assert(vkattn_reference_forward(&p, &t, NULL, VKATTN_F32, NULL) == VKATTN_INVALID);
    cr_assert(vkattn_reference_forward(&p, &t, NULL, (vkattn_dtype)3, &nothing) == VKATTN_INVALID);
    t.v = NULL;
    cr_assert(vkattn_reference_forward(&p, &t, NULL, VKATTN_F32, &nothing) == VKATTN_INVALID);
    cr_assert(strstr(vkattn_last_error(), "v is NULL"), "%s", vkattn_last_error());
    p.kv_heads = 2;
    cr_assert(vkattn_reference_forward(&p, &t, NULL, VKATTN_F32, &nothing) == VKATTN_INVALID);
    cr_assert(strstr(vkattn_last_error(), "kv_heads"), "%s", vkattn_last_error());
}

/* ---- Identities ------------------------------------------------------------------------------------------------ */

Test(reference, weights_sum_to_one_less_the_sink)
{
    vkattn_problem p = sized(2, 2, 3, 9, 5);
    vkattn_tensors t = gaussian_tensors(&p);
    static const float sinks[] = {0.5f, -1};
    t.sinks = sinks;
    for (int with_sink = 0; with_sink < 2; with_sink++) {
        p.flags = with_sink ? VKATTN_SINKS : 0;
        const vkattn_reference r = attend(&p, &t);
        for (size_t n = 0; n < rows_of(&p); n++) {
            double sum = with_sink ? exp((double)sinks[n / 3 % 2] - r.lse[n]) : 0;
            for (size_t j = 0; j < 9; j++)
                sum += r.weights[n * 9 + j];
            cr_assert_float_eq(sum, 1, 1e-14);
        }
    }
}

Test(reference, order_of_keys_does_not_matter)
{
    const vkattn_problem p = sized(1, 1, 4, 7, 3);
    const vkattn_tensors t = gaussian_tensors(&p);
    float *k = take(21 * sizeof *k), *v = take(21 * sizeof *v);
    for (size_t j = 0; j < 7; j++) {
        memcpy(k + j * 3, (const float *)t.k + j * 3 % 7 * 3, 3 * sizeof *k);
        memcpy(v + j * 3, (const float *)t.v + j * 3 % 7 * 3, 3 * sizeof *v);
    }
    const vkattn_tensors permuted = {.q = t.q, .k = k, .v = v};
    const vkattn_reference a = attend(&p, &t), b = attend(&p, &permuted);
    expect_near(a.o, b.o, 12, 1e-14);
    expect_near(a.lse, b.lse, 4, 1e-14);
    for (size_t n = 0; n < 28; n++)
        cr_assert_float_eq(b.weights[n], a.weights[n / 7 * 7 + n % 7 * 3 % 7], 1e-14);
}

Test(reference, constant_bias_shifts_only_the_lse)
{
    vkattn_problem p = sized(2, 2, 3, 5, 4);
    vkattn_tensors t = gaussian_tensors(&p);
    const vkattn_reference plain = attend(&p, &t);
    p.flags = VKATTN_BIAS;
    t.bias = constants(pairs_of(&p), 2.5f);
    const vkattn_reference shifted = attend(&p, &t);
    for (size_t n = 0; n < rows_of(&p); n++)
        shifted.lse[n] -= 2.5;
    expect_same(&p, &plain, &shifted, 1e-14);
}

Test(reference, grouped_heads_are_repeated_keys)
{
    vkattn_problem grouped = sized(2, 6, 3, 5, 4), repeated = grouped;
    grouped.kv_heads = 2;
    const vkattn_tensors t = gaussian_tensors(&grouped);
    float *k = take(2 * 6 * 20 * sizeof *k), *v = take(2 * 6 * 20 * sizeof *v);
    for (size_t h = 0; h < 12; h++) {
        memcpy(k + h * 20, (const float *)t.k + h / 3 * 20, 20 * sizeof *k);
        memcpy(v + h * 20, (const float *)t.v + h / 3 * 20, 20 * sizeof *v);
    }
    const vkattn_tensors many = {.q = t.q, .k = k, .v = v};
    const vkattn_reference a = attend(&grouped, &t), b = attend(&repeated, &many);
    expect_same(&grouped, &a, &b, 0);
}

Test(reference, alibi_is_a_bias_by_distance)
{
    static const float slopes[] = {0.5f, 0.125f};
    vkattn_problem p = sized(1, 2, 3, 5, 4);
    p.align = VKATTN_BOTTOM_RIGHT;
    vkattn_tensors t = gaussian_tensors(&p);
    float *bias = take(pairs_of(&p) * sizeof *bias);
    for (size_t n = 0; n < pairs_of(&p); n++)
        bias[n] = -slopes[n / 15] * fabsf((float)(n % 5) - (float)(n / 5 % 3 + 2));
    t.bias = bias, t.alibi = slopes;
    p.flags = VKATTN_ALIBI;
    const vkattn_reference a = attend(&p, &t);
    p.flags = VKATTN_BIAS;
    const vkattn_reference b = attend(&p, &t);
    expect_same(&p, &a, &b, 1e-14);
}

/* ---- Visibility against brute force ---------------------------------------------------------------------------- */

enum { MEMBERS = 2, HEADS = 2 };

struct scene {
    vkattn_problem problem;
    vkattn_tensors tensors;
    int32_t q_lengths[MEMBERS], kv_lengths[MEMBERS], prefix[MEMBERS];
    int32_t q_segments[MEMBERS * 8], kv_segments[MEMBERS * 8];
};

static int clamp(int value, uint32_t high)
{
    return value < 0 ? 0 : value > (int)high ? (int)high : value;
}

/* Written from the text of vkattn.h, apart from the reference. */
static bool shown(const struct scene *s, size_t b, int i, int j)
{
    const vkattn_problem *p = &s->problem;
    const uint32_t flags = p->flags;
    const int rows = flags & VKATTN_Q_LENGTHS ? clamp(s->q_lengths[b], p->len_q) : (int)p->len_q;
    const int keys = flags & VKATTN_KV_LENGTHS ? clamp(s->kv_lengths[b], p->len_kv) : (int)p->len_kv;
    if (i >= rows || j >= keys)
        return false;
    if ((flags & VKATTN_SEGMENTS) &&
        s->q_segments[b * p->len_q + (size_t)i] != s->kv_segments[b * p->len_kv + (size_t)j])
        return false;
    if ((flags & VKATTN_PREFIX) && j < clamp(s->prefix[b], p->len_kv))
        return true;
    const int diagonal = p->align == VKATTN_BOTTOM_RIGHT ? keys - (rows - i) : i;
    if ((flags & VKATTN_CAUSAL) && j > diagonal)
        return false;
    if ((flags & VKATTN_RIGHT) && j > diagonal + p->right)
        return false;
    return !(flags & VKATTN_LEFT) || j >= diagonal - p->left;
}

static void random_integers(int32_t *values, size_t count, int low, int high)
{
    for (size_t n = 0; n < count; n++)
        values[n] = low + (int)below((uint32_t)(high - low + 1));
}

static void random_scene(struct scene *s)
{
    vkattn_problem p = sized(MEMBERS, HEADS, 0, 0, 2);
    p.len_q = below(8);
    p.len_kv = below(8);
    p.flags = (uint32_t)random_bits() & (VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_RIGHT | VKATTN_PREFIX | VKATTN_SEGMENTS |
                                         VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS);
    p.align = below(2) ? VKATTN_TOP_LEFT : VKATTN_BOTTOM_RIGHT;
    random_integers(&p.left, 1, -2, 5);
    random_integers(&p.right, 1, -3, 4);
    random_integers(s->q_lengths, MEMBERS, -1, 9);
    random_integers(s->kv_lengths, MEMBERS, -1, 9);
    random_integers(s->prefix, MEMBERS, -1, 9);
    random_integers(s->q_segments, COUNT(s->q_segments), 0, 1);
    random_integers(s->kv_segments, COUNT(s->kv_segments), 0, 1);
    s->problem = p;
    s->tensors = gaussian_tensors(&p);
    s->tensors.q_lengths = s->q_lengths, s->tensors.kv_lengths = s->kv_lengths, s->tensors.prefix = s->prefix;
    s->tensors.q_segments = s->q_segments, s->tensors.kv_segments = s->kv_segments;
}

/* Every way of saying who sees whom equals a mask that says the same, in all four forms of masks. */
Test(reference, visibility_is_what_a_mask_would_say)
{
    for (int round = 0; round < 600; round++, release()) {
        struct scene s;
        random_scene(&s);
        const vkattn_reference r = attend(&s.problem, &s.tensors);

        vkattn_problem masked = s.problem;
        masked.flags = 0;
        masked.mask_kind = round % 2 ? VKATTN_MASK_BITS : VKATTN_MASK_BYTES;
        masked.mask_true = round % 4 < 2 ? VKATTN_TRUE_ATTENDS : VKATTN_TRUE_IGNORES;
        const size_t line = masked.mask_kind == VKATTN_MASK_BITS ? 1 : masked.len_kv;
        unsigned char *mask = memset(take(rows_of(&masked) * line), 0, rows_of(&masked) * line);
        for (size_t row = 0; row < rows_of(&masked); row++)
            for (int j = 0; j < (int)masked.len_kv; j++) {
                const size_t b = row / masked.len_q / HEADS;
                const bool bit =
                    shown(&s, b, (int)(row % masked.len_q), j) == (masked.mask_true == VKATTN_TRUE_ATTENDS);
                if (masked.mask_kind == VKATTN_MASK_BITS)
                    mask[row * line] |= (unsigned char)(bit << j);
                else
                    mask[row * line + (size_t)j] = bit ? (unsigned char)(1 + below(255)) : 0;
            }
        s.tensors.mask = mask;
        const vkattn_reference expected = attend(&masked, &s.tensors);
        expect_same(&masked, &r, &expected, 0);
    }
}

Test(reference, lengths_of_a_call_keep_the_strides)
{
    const vkattn_problem large = sized(2, 2, 6, 9, 3), small = sized(2, 2, 2, 4, 3);
    const vkattn_tensors t = gaussian_tensors(&large);
    vkattn_problem strided = small;
    strided.q = (vkattn_layout){VKATTN_STRIDED, 2 * 6 * 3, 6 * 3, 3};
    strided.k = strided.v = (vkattn_layout){VKATTN_STRIDED, 2 * 9 * 3, 9 * 3, 3};
    const vkattn_lengths lengths = {2, 4};
    const vkattn_reference a = attend_as(&large, &t, &lengths, VKATTN_F32), b = attend(&strided, &t);
    expect_same(&small, &a, &b, 0);
}

Test(reference, empty_tensors)
{
    vkattn_problem p = sized(1, 2, 3, 0, 2);
    vkattn_tensors t = {.q = constants(12, NAN)};
    vkattn_reference r = attend(&p, &t);
    EXPECT(r.o, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    for (size_t n = 0; n < 6; n++)
        cr_assert(r.lse[n] == -(double)INFINITY && r.lse_bound[n] == 0);

    static const float sinks[] = {1.5f, -2};
    p.flags = VKATTN_SINKS;
    t.sinks = sinks;
    r = attend(&p, &t);
    EXPECT(r.lse, 1.5, 1.5, 1.5, -2, -2, -2);
    EXPECT(r.o, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);

    p = sized(1, 2, 0, 3, 2);
    t = gaussian_tensors(&p);
    attend(&p, &t);
}

Test(reference, rows_past_the_length_see_nothing)
{
    static const int32_t lengths[] = {1};
    static const float q[] = {1, NAN}, k[] = {1, 2}, v[] = {5, 5}, sink[] = {0.25f};
    vkattn_problem p = sized(1, 1, 2, 2, 1);
    p.flags = VKATTN_Q_LENGTHS | VKATTN_SINKS;
    const vkattn_tensors t = {.q = q, .k = k, .v = v, .q_lengths = lengths, .sinks = sink};
    const vkattn_reference r = attend(&p, &t);
    cr_assert(r.o[0] > 0 && r.o[1] == 0 && r.lse[1] == 0.25);
    EXPECT(r.weights + 2, 0, 0);
}

/* ---- NaN and infinity ------------------------------------------------------------------------------------------ */

static vkattn_reference one_row(const float *k, const float *bias)
{
    static const float q[] = {1}, v[] = {1, 2};
    vkattn_problem p = sized(1, 1, 1, 2, 1);
    p.flags = bias ? VKATTN_BIAS : 0;
    const vkattn_tensors t = {.q = q, .k = k, .v = v, .bias = bias};
    return attend(&p, &t);
}

static bool is_nan_row(const vkattn_reference *r)
{
    return isnan(*r->o) && isnan(*r->lse) && isnan(r->weights[0]) && isnan(r->weights[1]) && *r->o_bound == 0 &&
           *r->lse_bound == 0;
}

Test(reference, scores_that_are_no_numbers)
{
    const float inf = INFINITY;
    const vkattn_reference rows[] = {
        one_row((const float[]){1, NAN}, NULL),
        one_row((const float[]){1, inf}, NULL),
        one_row((const float[]){-inf, -inf}, NULL),
        one_row((const float[]){1, 1}, (const float[]){inf, 0}),
        one_row((const float[]){1, 1}, (const float[]){0, NAN}),
    };
    for (size_t n = 0; n < COUNT(rows); n++)
        cr_assert(is_nan_row(&rows[n]), "row %zu: O %g, LSE %g", n, *rows[n].o, *rows[n].lse);

    const vkattn_reference one_left = one_row((const float[]){-inf, 1}, NULL);
    EXPECT(one_left.weights, 0, 1);
    EXPECT(one_left.o, 2);
    const vkattn_reference hidden = one_row((const float[]){NAN, 1}, (const float[]){-inf, 0});
    EXPECT(hidden.weights, 0, 1);
}

Test(reference, nan_poisons_its_row_alone)
{
    vkattn_problem p = sized(1, 1, 3, 3, 2);
    p.flags = VKATTN_CAUSAL;
    p.align = VKATTN_TOP_LEFT;
    vkattn_tensors t = gaussian_tensors(&p);
    float *k = gaussians(6, 1);
    k[4] = NAN;
    t.k = k;
    const vkattn_reference r = attend(&p, &t);
    cr_assert(isfinite(r.lse[0]) && isfinite(r.lse[1]) && isnan(r.lse[2]) && isnan(r.o[4]) && isnan(r.o[5]));
    cr_assert(r.weights[2] == 0 && r.weights[5] == 0 && isnan(r.weights[6]));
}

/* ---- Types and bounds ------------------------------------------------------------------------------------------ */

/* The decoded elements as f32. */
static float *decoded(vkattn_dtype type, const void *elements, size_t count)
{
    float *values = take(count * sizeof *values);
    for (size_t n = 0; n < count; n++)
        values[n] = vkattn_decode(type, (const char *)elements + n * vkattn_dtype_size(type));
    return values;
}

Test(reference, storage_types_only_change_what_is_read)
{
    vkattn_problem typed = sized(1, 2, 3, 5, 4), plain = typed;
    typed.q_type = VKATTN_BF16, typed.kv_type = VKATTN_F16, typed.bias_type = VKATTN_BF16;
    typed.flags = plain.flags = VKATTN_BIAS;
    const vkattn_tensors f32 = gaussian_tensors(&typed);
    const vkattn_tensors t = {.q = encoded(VKATTN_BF16, f32.q, 24),
                              .k = encoded(VKATTN_F16, f32.k, 40),
                              .v = encoded(VKATTN_F16, f32.v, 40),
                              .bias = encoded(VKATTN_BF16, gaussians(30, 1), 30)};
    const vkattn_tensors same = {.q = decoded(VKATTN_BF16, t.q, 24),
                                 .k = decoded(VKATTN_F16, t.k, 40),
                                 .v = decoded(VKATTN_F16, t.v, 40),
                                 .bias = decoded(VKATTN_BF16, t.bias, 30)};
    const vkattn_reference a = attend(&typed, &t), b = attend(&plain, &same);
    expect_same(&plain, &a, &b, 0);
}

Test(reference, lse_in_base_2)
{
    vkattn_problem p = sized(1, 2, 3, 5, 4);
    p.flags = VKATTN_WRITE_LSE;
    const vkattn_tensors t = gaussian_tensors(&p);
    const vkattn_reference natural = attend(&p, &t);
    p.flags |= VKATTN_LSE_BASE_2;
    const vkattn_reference binary = attend(&p, &t);
    for (size_t n = 0; n < 6; n++) {
        cr_assert_float_eq(binary.lse[n], natural.lse[n] / log(2), 1e-14);
        cr_assert(binary.lse_bound[n] > natural.lse_bound[n] && binary.lse_bound[n] < 2 * natural.lse_bound[n]);
    }
}

/* Scores 2 and 0, values 3 and -1, worked by hand from docs/numerics.md; what f32 may flush is far below. */
Test(reference, bounds_are_the_published_ones)
{
    static const float q[] = {2}, k[] = {1, 0}, v[] = {3, -1};
    const double u = 0x1p-24, w = 1 / (1 + exp(-2)), o = 3 * w - (1 - w), a = 3 * w + (1 - w), lse = 2 - log(w);
    const double e = 5 * u * 2, c = 24 + 2 * sqrt(2);
    vkattn_problem p = sized(1, 1, 1, 2, 1);
    const vkattn_tensors t = {.q = q, .k = k, .v = v};
    vkattn_reference r = attend(&p, &t);
    cr_assert_float_eq(*r.lse_bound, e + 0x1p-19 + 4 * 0x1p-22, 1e-20);
    cr_assert_float_eq(*r.o_bound, u * o + (2 * e + c * u) * a, 1e-20);
    const double exponent = 2 * e + 0x1p-19 + 4 * 0x1p-22 + (8 + 6 * (lse - 2)) * u;
    cr_assert_float_eq(*r.weights_bound, w * exponent, 1e-4 * w * exponent);
    p.o_type = VKATTN_F16;
    r = attend_as(&p, &t, NULL, VKATTN_BF16);
    cr_assert_float_eq(*r.o_bound, 0x1p-11 * o + 0x1p-8 * a + (2 * e + c * u) * a, 1e-15);
    p.o_type = VKATTN_BF16;
    r = attend_as(&p, &t, NULL, VKATTN_F16);
    cr_assert_float_eq(*r.o_bound, 0x1p-8 * o + 0x1p-11 * a + (2 * e + c * u) * a, 1e-15);
}

/* A key of weight 0 with a huge score does not blur the others; a key that its own error could lift up does. */
Test(reference, only_keys_that_carry_weight_count)
{
    static const float q[] = {1, 1}, low[] = {1, 0, -1e9f, 0}, torn[] = {1, 0, -1e9f, 1e9f - 128}, v[] = {1, 2, 3, 4};
    vkattn_problem p = sized(1, 1, 1, 2, 2);
    p.scale = 1;
    vkattn_tensors t = {.q = q, .k = low, .v = v};
    cr_assert(*attend(&p, &t).lse_bound < 1e-5);
    t.k = torn;
    const vkattn_reference r = attend(&p, &t);
    cr_assert(r.weights[1] < 1e-50 && *r.lse_bound > 100);
}

static double only_o_bound(vkattn_dtype o_type, float q, float k, float v, float scale)
{
    vkattn_problem p = sized(1, 1, 1, 2, 1);
    p.o_type = o_type;
    p.scale = scale;
    const float both_k[] = {k, 0}, both_v[] = {v, v};
    const vkattn_tensors t = {.q = &q, .k = both_k, .v = both_v};
    return *attend(&p, &t).o_bound;
}

Test(reference, beyond_the_range_anything_goes)
{
    cr_assert(isinf(only_o_bound(VKATTN_F32, 1e20f, 1e20f, 1, 0)));
    cr_assert(isinf(only_o_bound(VKATTN_F32, 1e20f, 1e20f, 1, 1e-10f)), "a kernel may scale the sum");
    cr_assert(isinf(only_o_bound(VKATTN_F32, 1e20f, 0, 1, 1e20f)), "a kernel may scale Q");
    cr_assert(isinf(only_o_bound(VKATTN_F32, 1, 1, 3e38f, 0)), "a sum of p V may overflow");
    cr_assert(isinf(only_o_bound(VKATTN_F16, 1, 1, 65520, 0)));
    cr_assert(only_o_bound(VKATTN_F16, 1, 1, 65000, 0) < 40);
    cr_assert(only_o_bound(VKATTN_F32, 1e10f, 1e10f, 1, 0) < 1e-5);
    cr_assert(only_o_bound(VKATTN_F16, 1, 1, 0x1p-20f, 0) < 0x1.01p-25, "half a step of binary16's subnormals");
    cr_assert(only_o_bound(VKATTN_F32, 1, 1, 0, 0) < 0x1p-120);
}

/* ---- Simulated f32 kernels ------------------------------------------------------------------------------------- */

/* What the simulated kernel does, and what it does wrong. */
struct kernel {
    vkattn_dtype p_type;
    uint32_t tile;
    bool scales_q; /* else the sum */
    float unit;    /* of its scores, m and exp: 1, or log2 e for a kernel that uses exp2 */
    bool drops_a_key, flushes_f16, rounds_scaled_q;
};

/* `exact` as an instruction returns it that may be wrong by so many ulp. */
static float inexact(double exact, double ulps)
{
    return (float)(exact * (1 + ulps * uniform(-1, 1) * 0x1p-23));
}

static const float log2_e = 1.44269504f;

/* exp or exp2. As the worst driver seen: 4 ulp near 0 and 64 at -85, and subnormals flushed. */
static float kernel_exp(const struct kernel *kernel, float x)
{
    const float p = inexact(kernel->unit == 1 ? exp((double)x) : exp2((double)x), 4 + 0.7 * fabs((double)x));
    return p < 0x1p-126f ? 0 : p;
}

/* log or log2, with all the error that Vulkan allows. */
static float kernel_log(const struct kernel *kernel, float x)
{
    const double exact = kernel->unit == 1 ? log((double)x) : log2((double)x);
    return x >= 0.5f && x <= 2 ? (float)(exact + uniform(-1, 1) * 0x1p-21) : inexact(exact, 3);
}

static float rounded(vkattn_dtype type, float value)
{
    uint32_t element;
    vkattn_encode(type, value, &element);
    return vkattn_decode(type, &element);
}

static float operand(const struct kernel *kernel, vkattn_dtype type, const void *elements, size_t index)
{
    const float x = vkattn_decode(type, (const char *)elements + index * vkattn_dtype_size(type));
    return kernel->flushes_f16 && type == VKATTN_F16 && fabsf(x) < 0x1p-14f ? 0 : x;
}

/* A trial has one member, one key/value head, dense tensors, a top-left band. */
struct trial {
    const struct kernel *kernel;
    const vkattn_problem *p;
    const vkattn_tensors *t;
    float scale; /* times the kernel's unit */
};

static float kernel_score(const struct trial *trial, size_t row, size_t j)
{
    const vkattn_problem *p = trial->p;
    float sum = 0;
    for (size_t r = 0; r < p->dim_qk; r++) {
        float q = operand(trial->kernel, p->q_type, trial->t->q, row * p->dim_qk + r);
        if (trial->kernel->scales_q)
            q *= trial->scale;
        if (trial->kernel->rounds_scaled_q)
            q = rounded(VKATTN_F16, q);
        sum += q * operand(trial->kernel, p->kv_type, trial->t->k, j * p->dim_qk + r);
    }
    const float unit = trial->kernel->unit, cap = p->softcap * unit;
    float s = trial->kernel->scales_q ? sum : sum * trial->scale;
    if (cap > 0)
        s = cap * inexact(tanh((double)(s / cap)), 3);
    if (p->flags & VKATTN_BIAS)
        s += unit * operand(trial->kernel, p->bias_type, trial->t->bias, row * p->len_kv + j);
    if (p->flags & VKATTN_ALIBI)
        s -= unit * trial->t->alibi[row / p->len_q] * fabsf((float)j - (float)(row % p->len_q));
    return s;
}

static bool kernel_sees(const struct trial *trial, size_t row, size_t j)
{
    const vkattn_problem *p = trial->p;
    if (trial->kernel->drops_a_key && j == p->len_kv / 2)
        return false;
    if ((p->flags & VKATTN_CAUSAL) && j > row % p->len_q)
        return false;
    return !(p->flags & VKATTN_BIAS) ||
           !isinf(vkattn_decode(p->bias_type, (const char *)trial->t->bias +
                                                  (row * p->len_kv + j) * vkattn_dtype_size(p->bias_type)));
}

/* Online softmax: the running maximum, sum and accumulator. */
struct running {
    float m, l, o[128];
};

static void raise_maximum(const struct kernel *kernel, struct running *run, float score, size_t dim_v)
{
    if (score <= run->m)
        return;
    const float correction = isinf(run->m) ? 0 : kernel_exp(kernel, run->m - score);
    run->m = score;
    run->l *= correction;
    for (size_t r = 0; r < dim_v; r++)
        run->o[r] *= correction;
}

static void kernel_tile(const struct trial *trial, size_t row, size_t first, struct running *run, float *scores)
{
    const vkattn_problem *p = trial->p;
    const size_t end = first + trial->kernel->tile < p->len_kv ? first + trial->kernel->tile : p->len_kv;
    float top = -INFINITY;
    for (size_t j = first; j < end; j++) {
        scores[j] = kernel_sees(trial, row, j) ? kernel_score(trial, row, j) : -INFINITY;
        top = fmaxf(top, scores[j]);
    }
    raise_maximum(trial->kernel, run, top, p->dim_v);
    float sum = 0; /* l adds up tiles, not keys: see docs/numerics.md */
    for (size_t j = first; j < end; j++) {
        if (isinf(scores[j]))
            continue;
        const float weight = kernel_exp(trial->kernel, scores[j] - run->m);
        sum += weight;
        for (size_t r = 0; r < p->dim_v; r++)
            run->o[r] += rounded(trial->kernel->p_type, weight) *
                         operand(trial->kernel, p->kv_type, trial->t->v, j * p->dim_v + r);
    }
    run->l += sum;
}

/* How far the kernel went, in units of each output's bound. */
struct excess {
    double o, lse, weights;
};

static double excess_of(double got, double expected, double bound)
{
    return got == expected || isinf(bound) ? 0 : isnan(got) ? (double)INFINITY : fabs(got - expected) / bound;
}

static void kernel_row(const struct trial *trial, size_t row, const vkattn_reference *r, struct excess *excess)
{
    const vkattn_problem *p = trial->p;
    const struct kernel *kernel = trial->kernel;
    struct running run = {.m = -INFINITY};
    float scores[2048];
    for (size_t first = 0; first < p->len_kv; first += kernel->tile)
        kernel_tile(trial, row, first, &run, scores);
    if (p->flags & VKATTN_SINKS) {
        const float sink = kernel->unit * trial->t->sinks[row / p->len_q];
        raise_maximum(kernel, &run, sink, p->dim_v);
        run.l += kernel_exp(kernel, sink - run.m);
    }
    const float stored_unit = p->flags & VKATTN_LSE_BASE_2 ? log2_e : 1;
    const float own_lse = run.l > 0 ? run.m + kernel_log(kernel, run.l) : -INFINITY;
    const float lse = own_lse * (stored_unit / kernel->unit);
    excess->lse = fmax(excess->lse, excess_of((double)lse, r->lse[row], r->lse_bound[row]));
    for (size_t n = 0; n < p->dim_v; n++) {
        const size_t at = row * p->dim_v + n;
        const float o = run.l > 0 ? rounded(p->o_type, run.o[n] / run.l) : 0;
        excess->o = fmax(excess->o, excess_of((double)o, r->o[at], r->o_bound[at]));
    }
    const float read_back = lse * (kernel->unit / stored_unit); /* W is computed from the LSE that was stored */
    for (size_t j = 0; j < p->len_kv; j++) {
        const size_t at = row * p->len_kv + j;
        const float weight = isinf(scores[j]) ? 0 : kernel_exp(kernel, scores[j] - read_back);
        excess->weights = fmax(excess->weights, excess_of((double)weight, r->weights[at], r->weights_bound[at]));
    }
}

static struct excess simulate(const struct kernel *kernel, const vkattn_problem *p, const vkattn_tensors *t)
{
    const vkattn_reference r = attend_as(p, t, NULL, kernel->p_type);
    const float scale = p->scale != 0 ? p->scale : 1 / sqrtf((float)p->dim_qk);
    const struct trial trial = {kernel, p, t, scale * kernel->unit};
    struct excess excess = {0};
    for (size_t row = 0; row < rows_of(p); row++)
        kernel_row(&trial, row, &r, &excess);
    return excess;
}

/* Tensors of a problem with one key/value head, in its types. */
static vkattn_tensors typed_tensors(const vkattn_problem *p, double q_sigma, double k_sigma, double v_sigma)
{
    const size_t q_size = rows_of(p) * p->dim_qk, k_size = keys_of(p) * p->dim_qk, v_size = keys_of(p) * p->dim_v;
    const void *q = encoded(p->q_type, gaussians(q_size, q_sigma), q_size);
    const void *k = encoded(p->kv_type, gaussians(k_size, k_sigma), k_size);
    const void *v = encoded(p->kv_type, gaussians(v_size, v_sigma), v_size);
    return (vkattn_tensors){.q = q, .k = k, .v = v};
}

static vkattn_dtype random_type(void)
{
    return (vkattn_dtype)below(3);
}

/* Ordinary biases, hidden keys, and the -10,000 that some models use for hiding. */
static float *random_bias(size_t count)
{
    float *bias = gaussians(count, 2);
    for (size_t n = 0; n < count; n++)
        if (below(4) == 0)
            bias[n] = below(2) ? -INFINITY : -10000;
    return bias;
}

static vkattn_problem random_problem(vkattn_tensors *t)
{
    static const uint32_t dims[] = {1, 3, 16, 64, 128};
    static float slopes[] = {0.5f, 0.01f}, sinks[2];
    vkattn_problem p = sized(1, 2, 0, 0, dims[below(5)]);
    p.kv_heads = 1;
    p.dim_v = dims[below(5)];
    p.len_q = 1 + below(4);
    p.len_kv = below(8) ? 1 + below(100) : 1000 + below(1000);
    p.q_type = random_type(), p.kv_type = random_type(), p.o_type = random_type(), p.bias_type = random_type();
    p.flags = (uint32_t)random_bits() & (VKATTN_BIAS | VKATTN_ALIBI | VKATTN_SINKS | VKATTN_CAUSAL | VKATTN_LSE_BASE_2);
    p.flags |= VKATTN_WRITE_LSE;
    p.align = VKATTN_TOP_LEFT;
    p.softcap = below(3) ? 0 : 20;
    p.scale = below(3) ? 0 : 0.3f;
    const double q_sigma = exp(uniform(-2, 3)), k_sigma = exp(uniform(-2, 2)), v_sigma = exp(uniform(-9, 4));
    *t = typed_tensors(&p, q_sigma, k_sigma, v_sigma);
    t->bias = encoded(p.bias_type, random_bias(pairs_of(&p)), pairs_of(&p));
    t->alibi = slopes;
    for (size_t h = 0; h < 2; h++)
        sinks[h] = 10 * gaussian();
    t->sinks = sinks;
    return p;
}

Test(reference, honest_kernels_stay_inside)
{
    struct excess worst = {0};
    for (int n = 0; n < 500; n++, release()) {
        vkattn_tensors t;
        const vkattn_problem p = random_problem(&t);
        struct kernel kernel = {.p_type = random_type()};
        kernel.tile = 16 + below(49);
        kernel.scales_q = below(2);
        kernel.unit = below(2) ? 1 : log2_e;
        const struct excess e = simulate(&kernel, &p, &t);
        cr_assert(e.o <= 1 && e.lse <= 1 && e.weights <= 1,
                  "problem %d: O %g, LSE %g, W %g bounds; q %s, kv %s, o %s, P %s, d %u, %u keys, flags %x", n, e.o,
                  e.lse, e.weights, vkattn_dtype_name(p.q_type), vkattn_dtype_name(p.kv_type),
                  vkattn_dtype_name(p.o_type), vkattn_dtype_name(kernel.p_type), p.dim_qk, p.len_kv, p.flags);
        worst = (struct excess){fmax(worst.o, e.o), fmax(worst.lse, e.lse), fmax(worst.weights, e.weights)};
    }
    cr_assert(worst.o > 0.5 && worst.lse > 0.1 && worst.weights > 0.1, "a bound that nothing comes near: %g, %g, %g",
              worst.o, worst.lse, worst.weights);
}

/* The fault shows in every one of the problems, and the same kernel without it is inside. */
static void expect_outside(struct kernel faulty, const vkattn_problem *p, double q_sigma, double k_sigma,
                           double v_sigma)
{
    struct kernel honest = faulty;
    honest.drops_a_key = honest.flushes_f16 = honest.rounds_scaled_q = false;
    for (int n = 0; n < 50; n++, release()) {
        const vkattn_tensors t = typed_tensors(p, q_sigma, k_sigma, v_sigma);
        const double inside = simulate(&honest, p, &t).o;
        const double outside = simulate(&faulty, p, &t).o;
        cr_assert(inside <= 1 && outside > 1, "problem %d: honest %g, faulty %g bounds", n, inside, outside);
    }
}

static vkattn_problem f16_problem(vkattn_dtype o_type)
{
    vkattn_problem p = sized(1, 1, 2, 64, 64);
    p.q_type = p.kv_type = VKATTN_F16;
    p.o_type = o_type;
    return p;
}

Test(reference, dropped_keys_fall_outside)
{
    const vkattn_problem p = f16_problem(VKATTN_F16);
    expect_outside((struct kernel){.p_type = VKATTN_F16, .tile = 16, .unit = 1, .drops_a_key = true}, &p, 1, 1, 1);
    expect_outside((struct kernel){.tile = 16, .unit = 1, .drops_a_key = true}, &p, 1, 1, 1);
}

Test(reference, flushed_subnormals_fall_outside)
{
    const vkattn_problem p = f16_problem(VKATTN_F16);
    expect_outside((struct kernel){.p_type = VKATTN_F16, .tile = 16, .unit = 1, .flushes_f16 = true}, &p, 1, 1, 1e-5);
    expect_outside((struct kernel){.p_type = VKATTN_F16, .tile = 16, .unit = 1, .flushes_f16 = true}, &p, 3e3, 2e-5, 1);
}

Test(reference, rounded_scaled_q_falls_outside)
{
    vkattn_problem p = f16_problem(VKATTN_F32);
    p.scale = 0.1f;
    const struct kernel kernel = {.tile = 16, .unit = 1, .scales_q = true, .rounds_scaled_q = true};
    expect_outside(kernel, &p, 1, 1, 1);
    expect_outside(kernel, &p, 4, 0.5, 1);
}

/* ---- Merging ---------------------------------------------------------------------------------------------------- */

enum { MERGED = 6, WIDTH = 2 };

/* Rows: equal parts, one empty with NaN in O, both empty, a NaN LSE, +infinity, far apart. */
static const float merge_first_o[MERGED * WIDTH] = {1, 2, NAN, NAN, NAN, NAN, 1, 1, 1, 1, 4, 4};
static const float merge_second_o[MERGED * WIDTH] = {3, 6, 5, 7, NAN, NAN, 1, 1, 1, 1, 8, 8};

static void merge_in_double(vkattn_merge m, const float first[MERGED], const float second[MERGED], double o[],
                            double o_bound[], double lse[], double lse_bound[])
{
    const vkattn_merge_tensors in = {merge_first_o, first, merge_second_o, second};
    const vkattn_reference out = {.o = o, .o_bound = o_bound, .lse = lse, .lse_bound = lse_bound};
    m.len_q = MERGED;
    m.dim_v = WIDTH;
    cr_assert(vkattn_reference_merge(&m, &in, NULL, &out) == VKATTN_OK, "%s", vkattn_last_error());
}

Test(reference, merges_by_weights)
{
    const float first[MERGED] = {1, -INFINITY, -INFINITY, NAN, 0, 0};
    const float second[MERGED] = {1, 3, -INFINITY, 0, INFINITY, -1};
    double o[MERGED * WIDTH], o_bound[MERGED * WIDTH], lse[MERGED], lse_bound[MERGED];
    merge_in_double((vkattn_merge){0}, first, second, o, o_bound, lse, lse_bound);
    cr_expect_float_eq(o[0], 2, 1e-12);
    cr_expect_float_eq(o[1], 4, 1e-12);
    cr_expect_float_eq(lse[0], 1 + log(2), 1e-12);
    cr_expect(o[2] == 5 && o[3] == 7 && lse[1] == 3, "an empty part changes nothing");
    cr_expect(o[4] == 0 && o[5] == 0 && isinf(lse[2]) && lse[2] < 0 && lse_bound[2] == 0);
    cr_expect(isnan(o[6]) && isnan(lse[3]) && isnan(o[8]) && isnan(lse[4]) && o_bound[6] == 0 && lse_bound[4] == 0);
    cr_expect_float_eq(o[10], (4 + 8 * exp(-1)) / (1 + exp(-1)), 1e-12);
    for (int n = 0; n < 4; n++)
        cr_expect(o_bound[n] > 0 && o_bound[n] < 2e-5, "bound %d is %g", n, o_bound[n]);
}

Test(reference, merges_in_base_2)
{
    const float first[MERGED] = {3, 0, 0, 0, 0, 0}, second[MERGED] = {1, 0, 0, 0, 0, 0};
    double o[MERGED * WIDTH], o_bound[MERGED * WIDTH], lse[MERGED], lse_bound[MERGED];
    merge_in_double((vkattn_merge){.flags = VKATTN_LSE_BASE_2}, first, second, o, o_bound, lse, lse_bound);
    cr_expect_float_eq(o[0], (8 * 1 + 2 * 3) / 10.0, 1e-12);
    cr_expect_float_eq(lse[0], log2(10), 1e-12);
}

/* The merge in f32, as a kernel may do it, stays inside the bound; one that leaves out a part does not. */
Test(reference, an_honest_merge_stays_inside_its_bound)
{
    double o[MERGED * WIDTH], o_bound[MERGED * WIDTH], lse[MERGED], lse_bound[MERGED];
    for (int trial = 0; trial < 2000; trial++) {
        const float gap = (float)trial / 25;
        const float first[MERGED] = {gap - 30, 0, 0, 0, 0, gap}, second[MERGED] = {-30, 0, 0, 0, 0, 0};
        merge_in_double((vkattn_merge){0}, first, second, o, o_bound, lse, lse_bound);
        const float w = expf(second[0] - first[0]), l = 1 + w;
        const float merged = (merge_first_o[0] + w * merge_second_o[0]) / l;
        cr_assert(fabs((double)merged - o[0]) <= o_bound[0], "gap %g", (double)gap);
        cr_assert(fabs((double)(first[0] + logf(l)) - lse[0]) <= lse_bound[0], "gap %g", (double)gap);
        if (gap < 12)
            cr_assert(fabs((double)merge_first_o[0] - o[0]) > o_bound[0], "gap %g", (double)gap);
    }
}

Test(reference, wrong_merges)
{
    const float lse[1] = {0}, o[4] = {0};
    const vkattn_merge m = {.len_q = 1, .dim_v = 4};
    const vkattn_reference out = {0};
    const vkattn_merge_tensors none = {0}, half = {o, lse, o, NULL};
    cr_expect(vkattn_reference_merge(&m, &none, NULL, &out) == VKATTN_INVALID);
    cr_expect_str_eq(vkattn_last_error(), "tensors.first_o is NULL");
    cr_expect(vkattn_reference_merge(&m, &half, NULL, &out) == VKATTN_INVALID);
    cr_expect_str_eq(vkattn_last_error(), "tensors.second_lse is NULL");
    cr_expect(vkattn_reference_merge(&m, &none, &(vkattn_lengths){0, 0}, &out) == VKATTN_OK);
    cr_expect(vkattn_reference_merge(&m, &half, &(vkattn_lengths){2, 0}, &out) == VKATTN_INVALID);
    cr_expect(vkattn_reference_merge(NULL, &half, NULL, &out) == VKATTN_INVALID);
}

/* Random problems: any combination of everything, from one seed, small enough to be quick on a CPU driver. */
#include "problems.h"

#include "rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "random:"

/* Multiply-adds of both products: a few milliseconds of the reference. */
enum { MOST_WORK = 1500000 };

static const uint32_t dims[] = {1,  2,  3,   8,   32,  40,  59,  64,  64,  64,  72,
                                80, 96, 111, 128, 128, 160, 192, 256, 320, 512, 576};
static const uint32_t groups[] = {1, 1, 1, 2, 3, 4, 5, 7, 8};

#define PICK(rng, array) ((array)[rng_below(rng, sizeof(array) / sizeof *(array))])

/* Small numbers as often as large ones. */
static uint32_t log_uniform(struct rng *rng, uint32_t most)
{
    uint32_t bits = 0;
    while (most >> bits)
        bits++;
    const uint32_t value = rng_below(rng, 1u << rng_below(rng, bits + 1));
    return value < most ? value : most;
}

static uint32_t dim(struct rng *rng)
{
    return rng_chance(rng, 75) ? PICK(rng, dims) : 1 + rng_below(rng, VKATTN_MAX_DIM);
}

static vkattn_dtype dtype(struct rng *rng)
{
    static const vkattn_dtype types[] = {VKATTN_F32, VKATTN_F32, VKATTN_F16, VKATTN_BF16};
    return PICK(rng, types);
}

static uint64_t work(const vkattn_problem *p)
{
    return (uint64_t)p->batch * p->heads * (p->len_q + 1u) * (p->len_kv + 1u) * (p->dim_qk + p->dim_v);
}

/* Few rows against so many keys that accumulators are folded. */
static void choose_long_sizes(struct rng *rng, vkattn_problem *p)
{
    p->batch = 1;
    p->kv_heads = 1 + rng_below(rng, 2);
    p->heads = p->kv_heads * (1 + rng_below(rng, 2));
    p->len_q = 1 + log_uniform(rng, 4);
    p->len_kv = 4000 + rng_below(rng, 6000);
    p->dim_qk = 1 + rng_below(rng, 9);
    p->dim_v = 1 + rng_below(rng, 9);
}

static void choose_short_sizes(struct rng *rng, vkattn_problem *p)
{
    p->batch = 1 + log_uniform(rng, 7);
    p->kv_heads = 1 + log_uniform(rng, 4);
    p->heads = p->kv_heads * PICK(rng, groups);
    p->len_q = log_uniform(rng, 300);
    p->len_kv = rng_chance(rng, 15) ? p->len_q : log_uniform(rng, 400);
    p->dim_qk = dim(rng);
    p->dim_v = rng_chance(rng, 70) ? p->dim_qk : dim(rng);
    while (work(p) > MOST_WORK) {
        if (p->len_q > 40 || p->len_kv > 80) {
            uint32_t *longer = p->len_q > p->len_kv ? &p->len_q : &p->len_kv;
            *longer -= *longer / 3;
        } else if (p->batch > 1) {
            p->batch--;
        } else if (p->kv_heads > 1) {
            p->heads -= p->heads / p->kv_heads;
            p->kv_heads--;
        } else {
            p->len_q -= p->len_q / 3;
            p->len_kv -= p->len_kv / 3;
            p->dim_v -= p->dim_v / 3;
        }
    }
}

static void choose_sizes(struct rng *rng, vkattn_problem *p)
{
    if (rng_chance(rng, 5))
        choose_long_sizes(rng, p);
    else
        choose_short_sizes(rng, p);
}

static void choose_types(struct rng *rng, vkattn_problem *p)
{
    p->q_type = dtype(rng);
    p->kv_type = p->o_type = p->q_type;
    if (rng_chance(rng, 50)) {
        p->kv_type = dtype(rng);
        p->o_type = dtype(rng);
    }
    p->bias_type = dtype(rng);
}

static void flag(struct rng *rng, vkattn_problem *p, uint32_t percent, uint32_t bit)
{
    if (rng_chance(rng, percent))
        p->flags |= bit;
}

static void choose_flags(struct rng *rng, vkattn_problem *p)
{
    flag(rng, p, 35, VKATTN_CAUSAL);
    flag(rng, p, 20, VKATTN_LEFT);
    flag(rng, p, 15, VKATTN_RIGHT);
    flag(rng, p, 15, VKATTN_PREFIX);
    flag(rng, p, 25, VKATTN_KV_LENGTHS);
    flag(rng, p, 20, VKATTN_Q_LENGTHS);
    flag(rng, p, 12, VKATTN_SEGMENTS);
    flag(rng, p, 25, VKATTN_BIAS);
    flag(rng, p, 15, VKATTN_ALIBI);
    flag(rng, p, 25, VKATTN_SINKS);
    flag(rng, p, 70, VKATTN_WRITE_LSE);
    flag(rng, p, 25, VKATTN_WRITE_WEIGHTS);
    if (p->flags & VKATTN_WRITE_LSE)
        flag(rng, p, 30, VKATTN_LSE_BASE_2);
    /* A bound close to what makes a difference, or far beyond. */
    const int32_t reach = (int32_t)(p->len_q + p->len_kv);
    p->left = (int32_t)log_uniform(rng, (uint32_t)reach) - (rng_chance(rng, 20) ? 5 : 0);
    p->right = (int32_t)log_uniform(rng, (uint32_t)reach) - (rng_chance(rng, 30) ? 5 : 0);
    const bool needed = p->flags & (VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_RIGHT | VKATTN_ALIBI);
    p->align = rng_chance(rng, 50) ? VKATTN_TOP_LEFT : VKATTN_BOTTOM_RIGHT;
    if (!needed && rng_chance(rng, 50))
        p->align = VKATTN_ALIGN_UNSTATED;
}

static void choose_scores(struct rng *rng, vkattn_problem *p)
{
    static const float scales[] = {1, -0.125f, 0.01f, 0.3f};
    static const float caps[] = {0.5f, 2, 30, 50};
    if (rng_chance(rng, 25))
        p->scale = PICK(rng, scales);
    if (rng_chance(rng, 20))
        p->softcap = PICK(rng, caps);
    if (rng_chance(rng, 35)) {
        p->mask_kind = rng_chance(rng, 50) ? VKATTN_MASK_BYTES : VKATTN_MASK_BITS;
        p->mask_true = rng_chance(rng, 50) ? VKATTN_TRUE_ATTENDS : VKATTN_TRUE_IGNORES;
    }
}

/* ---- Layouts --------------------------------------------------------------------------------------------------- */

struct axis {
    uint64_t *stride, count;
};

/* Batch, heads and rows in any order, with gaps. An input may broadcast. */
static vkattn_layout strided(struct rng *rng, uint64_t batch, uint64_t heads, uint64_t rows, uint64_t width, bool input)
{
    vkattn_layout layout = {.order = VKATTN_STRIDED};
    struct axis axes[3] = {{&layout.row, rows}, {&layout.head, heads}, {&layout.batch, batch}};
    uint64_t stride = width;
    for (uint32_t left = 3; left > 0; left--) {
        const uint32_t chosen = rng_below(rng, left);
        const struct axis axis = axes[chosen];
        axes[chosen] = axes[left - 1];
        stride += rng_chance(rng, 50) ? rng_below(rng, 6) : 0;
        const bool broadcast = input && rng_chance(rng, 15);
        *axis.stride = broadcast ? 0 : stride;
        if (!broadcast)
            stride *= axis.count ? axis.count : 1;
    }
    return layout;
}

static vkattn_layout layout(struct rng *rng, const vkattn_problem *p, uint64_t heads, uint64_t rows, uint64_t width,
                            bool input)
{
    const uint32_t choice = rng_below(rng, 10);
    if (choice < 4)
        return (vkattn_layout){.order = VKATTN_BHTD};
    if (choice < 7)
        return (vkattn_layout){.order = VKATTN_BTHD};
    return strided(rng, p->batch, heads, rows, width, input);
}

static void choose_layouts(struct rng *rng, vkattn_problem *p)
{
    p->q = layout(rng, p, p->heads, p->len_q, p->dim_qk, true);
    p->k = layout(rng, p, p->kv_heads, p->len_kv, p->dim_qk, true);
    p->v = layout(rng, p, p->kv_heads, p->len_kv, p->dim_v, true);
    p->o = layout(rng, p, p->heads, p->len_q, p->dim_v, false);
    p->lse = layout(rng, p, p->heads, p->len_q, 1, false);
    p->weights = layout(rng, p, p->heads, p->len_q, p->len_kv, false);
    p->mask = layout(rng, p, p->heads, p->len_q, p->len_kv, true);
    p->bias = layout(rng, p, p->heads, p->len_q, p->len_kv, true);
}

/* ---- Data ------------------------------------------------------------------------------------------------------ */

static void choose_data(struct rng *rng, struct check_problem *problem)
{
    static const enum score_data scores[] = {
        SCORES_NORMAL, SCORES_NORMAL, SCORES_NORMAL,  SCORES_NORMAL,    SCORES_NORMAL,   SCORES_LARGE,   SCORES_LARGE,
        SCORES_ZERO,   SCORES_HUGE,   SCORES_NAN_KEY, SCORES_NAN_QUERY, SCORES_INFINITE, SCORES_DOMINANT};
    static const enum value_data values[] = {VALUES_KEYED, VALUES_KEYED, VALUES_KEYED,     VALUES_ONE_HOT,
                                             VALUES_INDEX, VALUES_LARGE, VALUES_SUBNORMAL, VALUES_NAN};
    problem->scores = PICK(rng, scores);
    problem->values = PICK(rng, values);
    problem->mask = (enum mask_data)rng_below(rng, MASK_COUNT);
    problem->bias = rng_chance(rng, 40) ? BIAS_NORMAL : (enum bias_data)rng_below(rng, BIAS_COUNT);
    problem->kv_lengths = (enum length_data)rng_below(rng, LENGTHS_COUNT);
    problem->q_lengths = (enum length_data)rng_below(rng, LENGTHS_COUNT);
    problem->prefix = (enum length_data)rng_below(rng, LENGTHS_COUNT);
    problem->segments = (enum segment_data)rng_below(rng, SEGMENTS_COUNT);
    problem->sinks = rng_chance(rng, 60) ? SINKS_NORMAL : (enum sink_data)rng_below(rng, SINKS_COUNT);
    problem->poison = (enum poison)rng_below(rng, POISON_COUNT);
}

static void choose_call(struct rng *rng, struct check_problem *problem)
{
    const vkattn_problem *p = &problem->problem;
    problem->shortened = rng_chance(rng, 20);
    problem->lengths = (vkattn_lengths){rng_below(rng, p->len_q + 1), rng_below(rng, p->len_kv + 1)};
    /* Up to some 64 dispatches: each costs. */
    const uint64_t pairs = (uint64_t)p->batch * p->heads * p->len_q * (p->len_kv ? p->len_kv : 1);
    if (rng_chance(rng, 25))
        problem->max_work = 1 + pairs / (1 + rng_below(rng, 64));
}

void problems_random(uint64_t seed, struct check_problem *problem)
{
    /* The data has the seed itself: take another stream here. */
    struct rng rng = {~seed};
    *problem = (struct check_problem){.seed = seed};
    snprintf(problem->name, sizeof problem->name, PREFIX "%" PRIu64, seed);
    choose_sizes(&rng, &problem->problem);
    choose_types(&rng, &problem->problem);
    choose_flags(&rng, &problem->problem);
    choose_scores(&rng, &problem->problem);
    choose_layouts(&rng, &problem->problem);
    choose_data(&rng, problem);
    choose_call(&rng, problem);
}

bool problems_random_seed(const char *name, uint64_t *seed)
{
    char *end;
    const size_t length = strlen(PREFIX);
    if (strncmp(name, PREFIX, length) != 0 || name[length] < '0' || name[length] > '9')
        return false;
    *seed = strtoull(name + length, &end, 10);
    return *end == '\0';
}

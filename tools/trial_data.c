#include "trial_data.h"

#include "rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const enum blob_id trial_outputs[OUTPUT_COUNT] = {BLOB_O, BLOB_LSE, BLOB_WEIGHTS};

/* ---- Shapes ---------------------------------------------------------------------------------------------------- */

/* What a dimension of a tensor counts. */
enum axis { ONE, HEADS, KV_HEADS, LEN_Q, LEN_KV, DIM_QK, DIM_V };

static const struct shape {
    enum axis heads, rows, width;
    size_t layout; /* offset in vkattn_problem; 0: dense, without a choice */
} shapes[BLOB_COUNT] = {
    [BLOB_Q] = {HEADS, LEN_Q, DIM_QK, offsetof(vkattn_problem, q)},
    [BLOB_K] = {KV_HEADS, LEN_KV, DIM_QK, offsetof(vkattn_problem, k)},
    [BLOB_V] = {KV_HEADS, LEN_KV, DIM_V, offsetof(vkattn_problem, v)},
    [BLOB_O] = {HEADS, LEN_Q, DIM_V, offsetof(vkattn_problem, o)},
    [BLOB_LSE] = {HEADS, LEN_Q, ONE, offsetof(vkattn_problem, lse)},
    [BLOB_WEIGHTS] = {HEADS, LEN_Q, LEN_KV, offsetof(vkattn_problem, weights)},
    [BLOB_MASK] = {HEADS, LEN_Q, LEN_KV, offsetof(vkattn_problem, mask)},
    [BLOB_BIAS] = {HEADS, LEN_Q, LEN_KV, offsetof(vkattn_problem, bias)},
    [BLOB_ALIBI] = {HEADS, ONE, ONE, 0},
    [BLOB_SINKS] = {HEADS, ONE, ONE, 0},
    [BLOB_KV_LENGTHS] = {ONE, ONE, ONE, 0},
    [BLOB_Q_LENGTHS] = {ONE, ONE, ONE, 0},
    [BLOB_PREFIX] = {ONE, ONE, ONE, 0},
    [BLOB_Q_SEGMENTS] = {ONE, ONE, LEN_Q, 0},
    [BLOB_KV_SEGMENTS] = {ONE, ONE, LEN_KV, 0},
};

static uint64_t extent(const struct trial_data *data, enum axis axis, bool of_call)
{
    const vkattn_problem *p = &data->problem;
    switch (axis) {
    case HEADS:
        return p->heads;
    case KV_HEADS:
        return p->kv_heads;
    case LEN_Q:
        return of_call ? data->lengths.len_q : p->len_q;
    case LEN_KV:
        return of_call ? data->lengths.len_kv : p->len_kv;
    case DIM_QK:
        return p->dim_qk;
    case DIM_V:
        return p->dim_v;
    case ONE:
        break;
    }
    return 1;
}

/* Whether the problem has it, and its type. */
static void choose_type(const vkattn_problem *p, enum blob_id id, struct trial_tensor *t)
{
    static const uint32_t flags[BLOB_COUNT] = {
        [BLOB_LSE] = VKATTN_WRITE_LSE,       [BLOB_WEIGHTS] = VKATTN_WRITE_WEIGHTS,
        [BLOB_BIAS] = VKATTN_BIAS,           [BLOB_ALIBI] = VKATTN_ALIBI,
        [BLOB_SINKS] = VKATTN_SINKS,         [BLOB_KV_LENGTHS] = VKATTN_KV_LENGTHS,
        [BLOB_Q_LENGTHS] = VKATTN_Q_LENGTHS, [BLOB_PREFIX] = VKATTN_PREFIX,
        [BLOB_Q_SEGMENTS] = VKATTN_SEGMENTS, [BLOB_KV_SEGMENTS] = VKATTN_SEGMENTS,
    };
    t->used = id <= BLOB_O || (p->flags & flags[id]);
    t->output = id == BLOB_O || id == BLOB_LSE || id == BLOB_WEIGHTS;
    t->type = id == BLOB_Q                   ? p->q_type
              : id == BLOB_K || id == BLOB_V ? p->kv_type
              : id == BLOB_O                 ? p->o_type
              : id == BLOB_BIAS              ? p->bias_type
                                             : VKATTN_F32;
    t->bits = (unsigned)vkattn_dtype_size(t->type) * 8;
    if (id == BLOB_MASK) {
        t->used = p->mask_kind != VKATTN_MASK_NONE;
        t->bits = p->mask_kind == VKATTN_MASK_BITS ? 1 : 8;
    }
}

static void choose_strides(const struct trial_data *data, enum blob_id id, struct trial_tensor *t)
{
    const uint64_t heads = extent(data, shapes[id].heads, false), rows = extent(data, shapes[id].rows, false);
    const uint64_t width = extent(data, shapes[id].width, false);
    const uint64_t dense = t->bits == 1 ? (width + 7) / 8 * 8 : width;
    vkattn_layout layout = {0};
    if (shapes[id].layout)
        memcpy(&layout, (const char *)&data->problem + shapes[id].layout, sizeof layout);
    const uint64_t bhtd[3] = {heads * rows * dense, rows * dense, dense};
    const uint64_t bthd[3] = {heads * rows * dense, dense, heads * dense};
    const uint64_t strided[3] = {layout.batch, layout.head, layout.row};
    memcpy(t->strides,
           layout.order == VKATTN_BHTD   ? bhtd
           : layout.order == VKATTN_BTHD ? bthd
                                         : strided,
           sizeof t->strides);
    /* Vectors by head are shared by the batch. */
    if (id == BLOB_ALIBI || id == BLOB_SINKS)
        t->strides[0] = 0;
}

/* Elements from the first to past the last. */
static uint64_t span(const struct trial_data *data, const struct trial_tensor *t, uint64_t rows, uint64_t width)
{
    if (rows == 0 || width == 0)
        return 0;
    return (data->problem.batch - 1) * t->strides[0] + (t->heads - 1) * t->strides[1] + (rows - 1) * t->strides[2] +
           width;
}

static size_t to_bytes(const struct trial_tensor *t, uint64_t elements)
{
    return (size_t)((elements * t->bits + 7) / 8);
}

/* Where a tensor that shares its memory begins. */
static void choose_store(const struct trial_data *data, enum blob_id id, struct trial_tensor *t)
{
    const vkattn_problem *p = &data->problem;
    const bool packed = data->of->sharing == SHARE_PACKED && id <= BLOB_V;
    t->store = packed ? BLOB_Q : data->of->sharing == SHARE_KV && id == BLOB_V ? BLOB_K : id;
    if (packed)
        t->first = (uint64_t)p->dim_qk * (id == BLOB_Q ? 0 : id == BLOB_K ? p->heads : p->heads + p->kv_heads);
}

static void describe(struct trial_data *data, enum blob_id id)
{
    struct trial_tensor *t = &data->tensors[id];
    choose_type(&data->problem, id, t);
    if (!t->used)
        return;
    t->heads = extent(data, shapes[id].heads, true);
    t->rows = extent(data, shapes[id].rows, true);
    t->width = extent(data, shapes[id].width, true);
    choose_strides(data, id, t);
    choose_store(data, id, t);
    t->size = to_bytes(t, span(data, t, t->rows, t->width));
    const uint64_t rows = extent(data, shapes[id].rows, false), width = extent(data, shapes[id].width, false);
    struct trial_store *store = &data->stores[t->store];
    const size_t end = to_bytes(t, t->first + span(data, t, rows, width));
    store->size = end > store->size ? end : store->size;
    store->element = t->bits > 8 ? t->bits / 8 : 1;
}

static bool allocate(struct trial_data *data)
{
    for (unsigned id = 0; id < BLOB_COUNT; id++) {
        struct trial_store *store = &data->stores[id];
        if (store->size == 0)
            continue;
        store->bytes = malloc(store->size);
        store->live = calloc(store->size, 1);
        if (!store->bytes || !store->live)
            return false;
        memset(store->bytes, 0xff, store->size);
    }
    return true;
}

/* ---- Elements -------------------------------------------------------------------------------------------------- */

/* The element's number in its store. */
static uint64_t at(const struct trial_tensor *t, uint64_t b, uint64_t h, uint64_t row)
{
    return t->first + b * t->strides[0] + h * t->strides[1] + row * t->strides[2];
}

static unsigned char *bytes_at(struct trial_data *data, const struct trial_tensor *t, uint64_t element)
{
    return data->stores[t->store].bytes + element * (t->bits / 8);
}

static void put_integer(struct trial_data *data, enum blob_id id, uint64_t b, uint64_t index, int32_t value)
{
    const struct trial_tensor *t = &data->tensors[id];
    memcpy(bytes_at(data, t, at(t, b, 0, 0) + index), &value, sizeof value);
}

static int32_t integer(const struct trial_data *data, enum blob_id id, uint64_t b, uint64_t index)
{
    const struct trial_tensor *t = &data->tensors[id];
    int32_t value;
    memcpy(&value, data->stores[t->store].bytes + (at(t, b, 0, 0) + index) * 4, sizeof value);
    return value;
}

/* These `count` elements from `element` on hold something that may reach an output. */
static void make_live(struct trial_data *data, enum blob_id id, uint64_t element, uint64_t count)
{
    const struct trial_tensor *t = &data->tensors[id];
    if (count == 0)
        return;
    memset(data->stores[t->store].live + element * (t->bits / 8), 1, count * (t->bits / 8));
}

/* One element of a tensor that is being filled. */
struct place {
    const struct trial_data *data;
    struct rng *rng;
    vkattn_dtype type;
    uint32_t b, h, row, r;
};

static void fill(struct trial_data *data, struct rng *rng, enum blob_id id, float (*value)(const struct place *))
{
    const struct trial_tensor *t = &data->tensors[id];
    if (!t->used)
        return;
    struct place place = {.data = data, .rng = rng, .type = t->type};
    for (place.b = 0; place.b < data->problem.batch; place.b++)
        for (place.h = 0; place.h < t->heads; place.h++)
            for (place.row = 0; place.row < t->rows; place.row++) {
                const uint64_t first = at(t, place.b, place.h, place.row);
                for (place.r = 0; place.r < t->width; place.r++)
                    vkattn_encode(t->type, value(&place), bytes_at(data, t, first + place.r));
            }
}

/* ---- Q, K and V ------------------------------------------------------------------------------------------------ */

static bool middle_key(const struct place *p, uint32_t j)
{
    return j == p->data->lengths.len_kv / 2;
}

static bool middle_query(const struct place *p, uint32_t i)
{
    return i == p->data->lengths.len_q / 2;
}

/* 576 products of these stay within f32. */
static float huge(const struct place *p)
{
    const float magnitude = rng_between(p->rng, 0.5f, 1) * (p->type == VKATTN_F16 ? 6e4f : 4e17f);
    return rng_chance(p->rng, 50) ? magnitude : -magnitude;
}

static float subnormal(const struct place *p)
{
    return ((float)rng_below(p->rng, 64) - 20) * 0x1p-24f;
}

static float query(const struct place *p)
{
    const bool first = p->r == 0, odd = p->row & 1;
    const float normal = rng_normal(p->rng);
    switch (p->data->of->scores) {
    case SCORES_ZERO:
        return 0;
    case SCORES_LARGE:
        return 16 * normal;
    case SCORES_HUGE:
        return huge(p);
    case SCORES_STEP:
        return first ? 10 : 0;
    case SCORES_DOMINANT:
        return fabsf(normal) + 0.5f;
    case SCORES_SUBNORMAL:
        return subnormal(p);
    case SCORES_NAN_QUERY:
        return middle_query(p, p->row) && p->b == 0 && p->h == 0 ? NAN : normal;
    case SCORES_INFINITE:
        return first ? (odd ? 1 : -1) : normal;
    case SCORES_NO_FINITE:
        return first && !odd ? -INFINITY : normal;
    default:
        return normal;
    }
}

static float key(const struct place *p)
{
    const bool first = p->r == 0;
    const float normal = rng_normal(p->rng);
    switch (p->data->of->scores) {
    case SCORES_HUGE:
        return huge(p);
    case SCORES_STEP:
        return first && p->row % 2 == 0 ? 1 : 0;
    case SCORES_DOMINANT:
        return p->row + 1 == p->data->lengths.len_kv ? 10 : normal;
    case SCORES_SUBNORMAL:
        return subnormal(p);
    case SCORES_NAN_KEY:
        return middle_key(p, p->row) && p->b == 0 && p->h == 0 ? NAN : normal;
    case SCORES_INFINITE:
        return first && p->row % 7 == 3 ? INFINITY : normal;
    case SCORES_NO_FINITE:
        return first ? 1 : normal;
    default:
        return normal;
    }
}

/* Columns of three kinds: none has mean 0, and a sum with cancellation shows what a 16-bit output would round away. */
static float keyed(const struct place *p)
{
    switch (p->r % 3) {
    case 0:
        return rng_between(p->rng, 0.5f, 3.5f);
    case 1:
        return (float)(p->row % 251 + 1) / 64;
    default:
        return (p->row & 1 ? -1.0f : 1.0f) * rng_between(p->rng, 1, 2) + 0.25f;
    }
}

static float large(const struct place *p)
{
    const float value = 25000 * keyed(p);
    return p->type == VKATTN_F16 ? fmaxf(-60000, fminf(60000, value)) : value;
}

static float value(const struct place *p)
{
    const bool special = middle_key(p, p->row) && (p->r & 1 || p->data->problem.dim_v == 1);
    switch (p->data->of->values) {
    case VALUES_ONE_HOT:
        return p->row % p->data->problem.dim_v == p->r ? 1 : 0;
    case VALUES_INDEX:
        return (float)(p->row + 1);
    case VALUES_CONSTANT:
        return p->data->of->constant;
    case VALUES_CONSTANT_NAN:
        return special ? NAN : p->data->of->constant;
    case VALUES_LARGE:
        return large(p);
    case VALUES_SUBNORMAL:
        return (float)(1 + rng_below(p->rng, 1000)) * 0x1p-24f;
    case VALUES_NAN:
        return special ? NAN : keyed(p);
    case VALUES_INFINITE:
        return special ? INFINITY : keyed(p);
    default:
        return keyed(p);
    }
}

/* ---- Bias, mask and vectors ------------------------------------------------------------------------------------ */

static float lowest(vkattn_dtype type)
{
    return type == VKATTN_F16 ? -65504 : type == VKATTN_BF16 ? -0x1.fep127f : -FLT_MAX;
}

/* `r` is the key here. */
static float bias(const struct place *p)
{
    const float normal = rng_between(p->rng, -4, 4);
    const bool hole = rng_chance(p->rng, 30), special = middle_query(p, p->row) && p->r == 0;
    switch (p->data->of->bias) {
    case BIAS_HOLES:
        return hole ? -INFINITY : normal;
    case BIAS_LAST_HALF:
        return p->r < p->data->lengths.len_kv / 2 ? -INFINITY : 0;
    case BIAS_ROWS:
        return hole || p->row & 1 ? -INFINITY : normal;
    case BIAS_LOWEST:
        return lowest(p->type);
    case BIAS_MIXED:
        return hole ? lowest(p->type) : normal;
    case BIAS_LARGE:
        return 2500 * normal;
    case BIAS_INFINITE:
        return special ? INFINITY : normal;
    case BIAS_NAN:
        return special ? NAN : normal;
    default:
        return normal;
    }
}

static bool mask_shows(const struct trial_data *data, struct rng *rng, uint32_t i, uint32_t j)
{
    const uint32_t rows = data->lengths.len_q, keys = data->lengths.len_kv;
    switch (data->of->mask) {
    case MASK_SPARSE:
        return rng_chance(rng, 5);
    case MASK_LAST_HALF:
        return j >= keys / 2;
    case MASK_FIRST_HALF:
        return j < keys / 2;
    case MASK_LAST_KEY:
        return j + 1 == keys;
    case MASK_ROWS:
        return i % 2 == 0 && rng_below(rng, 3) > 0;
    case MASK_LAST_ROW:
        return i + 1 != rows;
    case MASK_ONE_ROW:
        return j != keys / 2 || i == rows / 2;
    case MASK_TRIANGLE:
        return j <= i;
    case MASK_NOTHING:
        return false;
    default:
        return rng_below(rng, 3) > 0;
    }
}

/* Any nonzero byte is True; of the bytes around a row of bits nothing is known. */
static void put_mask(struct trial_data *data, struct rng *rng, uint64_t element, bool is_true)
{
    unsigned char *bytes = data->stores[BLOB_MASK].bytes;
    if (data->problem.mask_kind == VKATTN_MASK_BYTES) {
        static const unsigned char nonzero[4] = {1, 2, 0x80, 0xff};
        bytes[element] = is_true ? nonzero[rng_below(rng, 4)] : 0;
        return;
    }
    const unsigned char bit = (unsigned char)(1u << element % 8);
    bytes[element / 8] = (unsigned char)(is_true ? bytes[element / 8] | bit : bytes[element / 8] & ~bit);
}

static void fill_mask(struct trial_data *data, struct rng *rng)
{
    const struct trial_tensor *t = &data->tensors[BLOB_MASK];
    if (!t->used)
        return;
    const bool ignores = data->problem.mask_true == VKATTN_TRUE_IGNORES;
    for (uint32_t b = 0; b < data->problem.batch; b++)
        for (uint32_t h = 0; h < t->heads; h++)
            for (uint32_t i = 0; i < t->rows; i++)
                for (uint32_t j = 0; j < t->width; j++)
                    put_mask(data, rng, at(t, b, h, i) + j, mask_shows(data, rng, i, j) != ignores);
    if (data->stores[BLOB_MASK].size)
        memset(data->stores[BLOB_MASK].live, 1, data->stores[BLOB_MASK].size);
}

static int32_t length(struct rng *rng, enum length_data kind, uint32_t turn, uint32_t whole)
{
    const int32_t mixed[8] = {(int32_t)whole / 2 + 1, 0, (int32_t)whole, -3,
                              (int32_t)whole + 9,     1, INT32_MAX,      INT32_MIN};
    switch (kind) {
    case LENGTHS_RANDOM:
        return (int32_t)rng_below(rng, whole + 5) - 2;
    case LENGTHS_ZERO:
        return 0;
    case LENGTHS_HALF:
        return (int32_t)whole / 2;
    default:
        return mixed[turn % 8];
    }
}

/* Members take the turns of the three kinds of length out of step. */
static void fill_lengths(struct trial_data *data, struct rng *rng)
{
    const struct {
        enum blob_id id;
        enum length_data kind;
        uint32_t phase, whole;
    } lengths[] = {{BLOB_KV_LENGTHS, data->of->kv_lengths, 0, data->lengths.len_kv},
                   {BLOB_Q_LENGTHS, data->of->q_lengths, 2, data->lengths.len_q},
                   {BLOB_PREFIX, data->of->prefix, 5, data->lengths.len_kv}};
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        if (!data->tensors[lengths[n].id].used)
            continue;
        for (uint32_t b = 0; b < data->problem.batch; b++)
            put_integer(data, lengths[n].id, b, 0,
                        length(rng, lengths[n].kind, b + lengths[n].phase, lengths[n].whole));
        make_live(data, lengths[n].id, 0, data->problem.batch);
    }
}

static const int32_t labels[5] = {7, -1, INT32_MIN, 0, 8};

static void fill_segments(struct trial_data *data, struct rng *rng)
{
    const uint32_t len_q = data->lengths.len_q, len_kv = data->lengths.len_kv;
    const bool packed = data->of->segments == SEGMENTS_PACKED;
    if (!data->tensors[BLOB_Q_SEGMENTS].used)
        return;
    for (uint32_t b = 0; b < data->problem.batch; b++) {
        int32_t label = labels[0];
        for (uint32_t j = 0; j < len_kv; j++) {
            if (!packed || rng_below(rng, len_kv) < 4)
                label = labels[rng_below(rng, 5)];
            put_integer(data, BLOB_KV_SEGMENTS, b, j, label);
        }
        for (uint32_t i = 0; i < len_q; i++) {
            /* Packed queries lie along the keys, however many there are. */
            const uint32_t j = (uint32_t)((uint64_t)i * len_kv / len_q);
            label = packed && len_kv ? integer(data, BLOB_KV_SEGMENTS, b, j) : labels[rng_below(rng, 5)];
            put_integer(data, BLOB_Q_SEGMENTS, b, i,
                        data->of->segments == SEGMENTS_DISJOINT ? 1000 + label % 2 : label);
        }
    }
}

static float slope(const struct place *p)
{
    const float magnitude = ldexpf(1, -(int)(p->h % 8));
    return p->h % 5 == 4 ? -magnitude : magnitude;
}

static float sink(const struct place *p)
{
    static const float mixed[4] = {0, -INFINITY, 80, -80};
    switch (p->data->of->sinks) {
    case SINKS_MIXED:
        return mixed[p->h % 4];
    case SINKS_LOG:
        return (float)(p->h * log(fmax(1, p->data->lengths.len_kv)));
    case SINKS_INFINITE:
        return p->h & 1 ? INFINITY : 0.5f;
    default:
        return rng_between(p->rng, -2, 4);
    }
}

static void fill_all(struct trial_data *data)
{
    struct rng rng = {data->of->seed};
    fill_lengths(data, &rng);
    fill_segments(data, &rng);
    fill_mask(data, &rng);
    fill(data, &rng, BLOB_ALIBI, slope);
    fill(data, &rng, BLOB_SINKS, sink);
    fill(data, &rng, BLOB_BIAS, bias);
    fill(data, &rng, BLOB_Q, query);
    fill(data, &rng, BLOB_K, key);
    if (data->of->sharing != SHARE_KV)
        fill(data, &rng, BLOB_V, value);
    for (enum blob_id id = BLOB_ALIBI; id <= BLOB_SINKS; id++)
        if (data->tensors[id].used)
            make_live(data, id, 0, data->problem.heads);
}

/* ---- Who sees whom --------------------------------------------------------------------------------------------- */

/* A batch member's own lengths. */
struct member {
    uint32_t b;
    int64_t len_q, len_kv, prefix, shift;
    int64_t left, right;
};

static int64_t clamped(const struct trial_data *data, enum blob_id id, uint32_t b, int64_t otherwise, int64_t limit)
{
    const int64_t given = data->tensors[id].used ? integer(data, id, b, 0) : otherwise;
    return given < 0 ? 0 : given > limit ? limit : given;
}

static struct member member(const struct trial_data *data, uint32_t b)
{
    const vkattn_problem *p = &data->problem;
    struct member m = {.b = b, .left = INT64_MAX / 2, .right = INT64_MAX / 2};
    m.len_q = clamped(data, BLOB_Q_LENGTHS, b, data->lengths.len_q, data->lengths.len_q);
    m.len_kv = clamped(data, BLOB_KV_LENGTHS, b, data->lengths.len_kv, data->lengths.len_kv);
    m.prefix = clamped(data, BLOB_PREFIX, b, 0, m.len_kv);
    m.shift = p->align == VKATTN_BOTTOM_RIGHT ? m.len_kv - m.len_q : 0;
    if (p->flags & VKATTN_LEFT)
        m.left = p->left;
    if (p->flags & VKATTN_RIGHT)
        m.right = p->right;
    if ((p->flags & VKATTN_CAUSAL) && m.right > 0)
        m.right = 0;
    return m;
}

static bool mask_allows(const struct trial_data *data, uint32_t b, uint32_t h, uint32_t i, uint32_t j)
{
    const struct trial_tensor *t = &data->tensors[BLOB_MASK];
    if (!t->used)
        return true;
    const uint64_t element = at(t, b, h, i) + j;
    const unsigned char byte = data->stores[BLOB_MASK].bytes[element * t->bits / 8];
    const bool is_true = t->bits == 1 ? byte >> element % 8 & 1 : byte != 0;
    return is_true == (data->problem.mask_true == VKATTN_TRUE_ATTENDS);
}

static bool bias_allows(const struct trial_data *data, uint32_t b, uint32_t h, uint32_t i, uint32_t j)
{
    const struct trial_tensor *t = &data->tensors[BLOB_BIAS];
    if (!t->used)
        return true;
    const unsigned char *bytes = data->stores[BLOB_BIAS].bytes + (at(t, b, h, i) + j) * (t->bits / 8);
    return vkattn_decode(t->type, bytes) != -INFINITY;
}

/* All but the bias. */
static bool admits(const struct trial_data *data, const struct member *m, uint32_t h, uint32_t i, uint32_t j)
{
    const int64_t distance = (int64_t)j - (i + m->shift);
    if (i >= m->len_q || j >= m->len_kv)
        return false;
    if (j >= m->prefix && (distance < -m->left || distance > m->right))
        return false;
    if (data->tensors[BLOB_Q_SEGMENTS].used &&
        integer(data, BLOB_Q_SEGMENTS, m->b, i) != integer(data, BLOB_KV_SEGMENTS, m->b, j))
        return false;
    return mask_allows(data, m->b, h, i, j);
}

/* One query: what it sees, and itself if it sees anything. `seen` has an entry for each key of its kv head. */
static void mark_query(struct trial_data *data, const struct member *m, uint32_t h, uint32_t i, unsigned char *seen)
{
    bool sees = false;
    for (uint32_t j = 0; j < data->lengths.len_kv; j++) {
        if (!admits(data, m, h, i, j))
            continue;
        /* A bias is read wherever the rest admits the pair: it may be what hides it. */
        if (data->tensors[BLOB_BIAS].used)
            make_live(data, BLOB_BIAS, at(&data->tensors[BLOB_BIAS], m->b, h, i) + j, 1);
        if (!bias_allows(data, m->b, h, i, j))
            continue;
        seen[j] = 1;
        sees = true;
    }
    if (sees)
        make_live(data, BLOB_Q, at(&data->tensors[BLOB_Q], m->b, h, i), data->problem.dim_qk);
}

static void mark_keys(struct trial_data *data, uint32_t b, uint32_t g, const unsigned char *seen)
{
    for (uint32_t j = 0; j < data->lengths.len_kv; j++) {
        if (!seen[j])
            continue;
        make_live(data, BLOB_K, at(&data->tensors[BLOB_K], b, g, j), data->problem.dim_qk);
        make_live(data, BLOB_V, at(&data->tensors[BLOB_V], b, g, j), data->problem.dim_v);
    }
}

static void mark_segments(struct trial_data *data, const struct member *m)
{
    if (!data->tensors[BLOB_Q_SEGMENTS].used)
        return;
    make_live(data, BLOB_Q_SEGMENTS, at(&data->tensors[BLOB_Q_SEGMENTS], m->b, 0, 0), (uint64_t)m->len_q);
    make_live(data, BLOB_KV_SEGMENTS, at(&data->tensors[BLOB_KV_SEGMENTS], m->b, 0, 0), (uint64_t)m->len_kv);
}

static bool mark_inputs(struct trial_data *data)
{
    const vkattn_problem *p = &data->problem;
    const uint32_t group = p->heads / p->kv_heads;
    unsigned char *seen = malloc(data->lengths.len_kv + 1u);
    if (!seen)
        return false;
    for (uint32_t b = 0; b < p->batch; b++) {
        const struct member m = member(data, b);
        mark_segments(data, &m);
        for (uint32_t g = 0; g < p->kv_heads; g++) {
            memset(seen, 0, data->lengths.len_kv);
            for (uint32_t h = g * group; h < (g + 1) * group; h++)
                for (uint32_t i = 0; i < data->lengths.len_q; i++)
                    mark_query(data, &m, h, i, seen);
            mark_keys(data, b, g, seen);
        }
    }
    free(seen);
    return true;
}

static void mark_outputs(struct trial_data *data)
{
    for (unsigned n = 0; n < OUTPUT_COUNT; n++) {
        const enum blob_id id = trial_outputs[n];
        const struct trial_tensor *t = &data->tensors[id];
        for (uint32_t b = 0; t->used && b < data->problem.batch; b++)
            for (uint32_t h = 0; h < t->heads; h++)
                for (uint32_t row = 0; row < t->rows; row++)
                    make_live(data, id, at(t, b, h, row), t->width);
    }
}

/* ---- Poison ---------------------------------------------------------------------------------------------------- */

static void encode_poison(enum poison poison, vkattn_dtype type, unsigned char bytes[4])
{
    memset(bytes, 0xff, 4); /* a NaN of every type */
    if (poison != POISON_NAN)
        vkattn_encode(type, poison == POISON_INFINITE ? INFINITY : -lowest(type), bytes);
}

/* Everything in the inputs that no output may depend on. */
static void poison_inputs(struct trial_data *data)
{
    for (enum blob_id id = 0; id < BLOB_COUNT; id++) {
        const struct trial_tensor *t = &data->tensors[id];
        const bool floats = id <= BLOB_V || id == BLOB_BIAS;
        struct trial_store *store = &data->stores[id];
        unsigned char bytes[4];
        if (t->output)
            continue;
        encode_poison(floats ? data->of->poison : POISON_NAN, t->type, bytes);
        for (size_t n = 0; n < store->size; n++)
            if (!store->live[n])
                store->bytes[n] = bytes[n % store->element];
    }
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static void fill_defaults(struct trial_data *data)
{
    vkattn_problem *p = &data->problem;
    *p = data->of->problem;
    p->batch = p->batch ? p->batch : 1;
    p->heads = p->heads ? p->heads : 1;
    p->kv_heads = p->kv_heads ? p->kv_heads : p->heads;
    p->dim_v = p->dim_v ? p->dim_v : p->dim_qk;
    data->lengths = data->of->shortened ? data->of->lengths : (vkattn_lengths){p->len_q, p->len_kv};
}

static bool allocate_reference(struct trial_data *data)
{
    for (unsigned n = 0; n < OUTPUT_COUNT; n++) {
        const struct trial_tensor *t = &data->tensors[trial_outputs[n]];
        const size_t count = t->used ? (size_t)(data->problem.batch * t->heads * t->rows * t->width) : 0;
        if (!t->used)
            continue;
        data->reference[n] = calloc(count + 1, sizeof(double));
        data->bound[n] = calloc(count + 1, sizeof(double));
        if (!data->reference[n] || !data->bound[n])
            return false;
    }
    return true;
}

static vkattn_status compute_reference(struct trial_data *data)
{
    struct inputs inputs = {0};
    for (unsigned id = 0; id < BLOB_COUNT; id++) {
        const struct trial_tensor *t = &data->tensors[id];
        if (t->used && t->size)
            inputs.blobs[id].data = data->stores[t->store].bytes + t->first * t->bits / 8;
    }
    const vkattn_tensors tensors = inputs_tensors(&inputs);
    const vkattn_reference out = {.o = data->reference[OUTPUT_O],
                                  .lse = data->reference[OUTPUT_LSE],
                                  .weights = data->reference[OUTPUT_WEIGHTS],
                                  .o_bound = data->bound[OUTPUT_O],
                                  .lse_bound = data->bound[OUTPUT_LSE],
                                  .weights_bound = data->bound[OUTPUT_WEIGHTS]};
    return vkattn_reference_forward(&data->of->problem, &tensors, &data->lengths, data->p_type, &out);
}

vkattn_status trial_data_round_p(struct trial_data *data, vkattn_dtype p_type)
{
    if (data->p_type == p_type)
        return VKATTN_OK;
    data->p_type = p_type;
    return compute_reference(data);
}

vkattn_status trial_data_build(const struct check_problem *of, struct trial_data *data)
{
    *data = (struct trial_data){.of = of};
    fill_defaults(data);
    /* Before strides are multiplied here, which nothing else has looked at. */
    const vkattn_status status = vkattn_problem_check(&of->problem);
    if (status != VKATTN_OK)
        return status;
    for (enum blob_id id = 0; id < BLOB_COUNT; id++)
        describe(data, id);
    if (!allocate(data) || !allocate_reference(data))
        return vkattn_error_set(VKATTN_NO_MEMORY, "no host memory for a problem");
    fill_all(data);
    if (!mark_inputs(data))
        return vkattn_error_set(VKATTN_NO_MEMORY, "no host memory for a problem");
    mark_outputs(data);
    poison_inputs(data);
    return compute_reference(data);
}

void trial_data_free(struct trial_data *data)
{
    for (unsigned id = 0; id < BLOB_COUNT; id++) {
        free(data->stores[id].bytes);
        free(data->stores[id].live);
    }
    for (unsigned n = 0; n < OUTPUT_COUNT; n++) {
        free(data->reference[n]);
        free(data->bound[n]);
    }
}

struct compare_view trial_data_view(const struct trial_data *data, unsigned output, const void *bytes)
{
    const struct trial_tensor *t = &data->tensors[trial_outputs[output]];
    return (struct compare_view){.data = bytes,
                                 .type = t->type,
                                 .shape = {data->problem.batch, t->heads, t->rows, t->width},
                                 .strides = {t->strides[0], t->strides[1], t->strides[2]}};
}

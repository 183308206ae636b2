#include "cases.h"

#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <vkattn/reference.h>

#define SQUARE(H, T, D, TYPE, ...)                                                                     \
    {                                                                                                  \
        .heads = (H), .len_q = (T), .len_kv = (T), .dim_qk = (D), .q_type = (TYPE), .kv_type = (TYPE), \
        .o_type = (TYPE), __VA_ARGS__                                                                  \
    }

#define ODD_ROWS                                                                      \
    {                                                                                 \
        .order = VKATTN_STRIDED, .batch = 8 * 1024 * 65, .head = 1024 * 65, .row = 65 \
    }

const struct bench_case bench_cases[BENCH_CASES] = {
    {"prefill-f32-d32", SQUARE(8, 1024, 32, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d64", SQUARE(8, 1024, 64, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d96", SQUARE(8, 1024, 96, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d128", SQUARE(8, 1024, 128, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d256", SQUARE(8, 1024, 256, VKATTN_F32, .flags = 0)},
    {"prefill-f16-d64", SQUARE(8, 1024, 64, VKATTN_F16, .flags = 0)},
    {"prefill-f16-d128", SQUARE(8, 1024, 128, VKATTN_F16, .flags = 0)},
    {"prefill-bf16-d128", SQUARE(8, 1024, 128, VKATTN_BF16, .flags = 0)},
    {"causal-f16-d64", SQUARE(8, 1024, 64, VKATTN_F16, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"causal-f16-d128", SQUARE(8, 1024, 128, VKATTN_F16, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    /* What costs more than the plain case: one mask for all heads, a bias for each, rows of 65 elements. */
    {"softcap-f32-d64", SQUARE(8, 1024, 64, VKATTN_F32, .softcap = 30)},
    {"mask-f32-d64", SQUARE(8, 1024, 64, VKATTN_F32, .mask_kind = VKATTN_MASK_BYTES, .mask_true = VKATTN_TRUE_ATTENDS,
                            .mask = {.order = VKATTN_STRIDED, .row = 1024})},
    {"bias-f32-d64", SQUARE(8, 1024, 64, VKATTN_F32, .flags = VKATTN_BIAS)},
    {"stride65-f16-d64", SQUARE(8, 1024, 64, VKATTN_F16, .q = ODD_ROWS, .k = ODD_ROWS, .v = ODD_ROWS)},
    {"square-f32-d64-t4096", SQUARE(1, 4096, 64, VKATTN_F32, .flags = 0)},
    {"causal-f32-d64-t4096", SQUARE(1, 4096, 64, VKATTN_F32, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"square-f32-d128-t4096", SQUARE(1, 4096, 128, VKATTN_F32, .flags = 0)},
    {"causal-f32-d128-t4096", SQUARE(1, 4096, 128, VKATTN_F32, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"decode-f16-d128-t4096",
     {.heads = 32,
      .kv_heads = 8,
      .len_q = 1,
      .len_kv = 4096,
      .dim_qk = 128,
      .q_type = VKATTN_F16,
      .kv_type = VKATTN_F16,
      .o_type = VKATTN_F16}},
    {"decode-f16-d128-heads8",
     {.heads = 32,
      .kv_heads = 4,
      .len_q = 1,
      .len_kv = 4096,
      .dim_qk = 128,
      .q_type = VKATTN_F16,
      .kv_type = VKATTN_F16,
      .o_type = VKATTN_F16}},
};

/* Uniform in -1 .. 1; a generator of its own, so that every machine measures the same numbers. */
static float next_value(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(*state >> 40) * 0x1p-23 - 1.0);
}

static bool make_blob(struct blob *blob, vkattn_dtype type, uint64_t elements, uint64_t *state)
{
    const size_t size = vkattn_dtype_size(type);
    blob->size = (size_t)elements * size;
    blob->data = malloc(blob->size);
    for (uint64_t i = 0; blob->data && i < elements; i++)
        vkattn_encode(type, next_value(state), (char *)blob->data + i * size);
    return blob->data != NULL;
}

/* Elements that a tensor [batch, heads, rows, width] spans. */
static uint64_t span(const vkattn_layout *layout, uint64_t batch, uint64_t heads, uint64_t rows, uint64_t width)
{
    if (layout->order != VKATTN_STRIDED)
        return batch * heads * rows * width;
    return (batch - 1) * layout->batch + (heads - 1) * layout->head + (rows - 1) * layout->row + width;
}

static bool make_mask(struct blob *blob, uint64_t size, uint64_t *state)
{
    blob->size = (size_t)size;
    blob->data = malloc(blob->size);
    for (uint64_t i = 0; blob->data && i < size; i++)
        ((unsigned char *)blob->data)[i] = next_value(state) > -0.75f;
    return blob->data != NULL;
}

bool cases_make_blobs(const vkattn_problem *p, struct blob blobs[BLOB_COUNT])
{
    const uint64_t batch = p->batch ? p->batch : 1, heads = p->heads ? p->heads : 1;
    const uint64_t kv_heads = p->kv_heads ? p->kv_heads : heads, width = p->dim_qk;
    uint64_t state = 1;
    if (p->mask_kind == VKATTN_MASK_BYTES &&
        !make_mask(&blobs[BLOB_MASK], span(&p->mask, batch, heads, p->len_q, p->len_kv), &state))
        return false;
    if (p->flags & VKATTN_BIAS &&
        !make_blob(&blobs[BLOB_BIAS], p->bias_type, span(&p->bias, batch, heads, p->len_q, p->len_kv), &state))
        return false;
    return make_blob(&blobs[BLOB_Q], p->q_type, span(&p->q, batch, heads, p->len_q, width), &state) &&
           make_blob(&blobs[BLOB_K], p->kv_type, span(&p->k, batch, kv_heads, p->len_kv, width), &state) &&
           make_blob(&blobs[BLOB_V], p->kv_type, span(&p->v, batch, kv_heads, p->len_kv, width), &state) &&
           make_blob(&blobs[BLOB_O], p->o_type, span(&p->o, batch, heads, p->len_q, width), &state);
}

bool cases_wants(const char *parts, const struct bench_case *bench_case)
{
    if (!parts)
        return true;
    for (const char *part = parts; *part;) {
        const size_t length = strcspn(part, ",");
        for (const char *name = bench_case->name; length > 0 && *name; name++)
            if (strncmp(name, part, length) == 0)
                return true;
        part += length + (part[length] == ',');
    }
    return false;
}

bool cases_check_wants(const char *parts)
{
    for (unsigned i = 0; i < BENCH_CASES; i++)
        if (cases_wants(parts, &bench_cases[i]))
            return true;
    command_complain("--case: no case's name holds \"%s\"", parts);
    return false;
}

void cases_free_blobs(struct blob blobs[BLOB_COUNT])
{
    for (unsigned i = 0; i < BLOB_COUNT; i++)
        free(blobs[i].data);
}

/* vkattn_record_merge on a device: against the reference, in place, by halves of the keys; and its misuse. */
#include "gpu.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define STRIDES(b, h, r)                                               \
    {                                                                  \
        .order = VKATTN_STRIDED, .batch = (b), .head = (h), .row = (r) \
    }

TestSuite(merge, .timeout = 300);

enum slot { FIRST_O, FIRST_LSE, SECOND_O, SECOND_LSE, O, LSE, SLOTS };

/* Tensors of a merge in host memory; elements between rows hold poison. */
struct trial {
    vkattn_merge merge;
    unsigned char *data[SLOTS];
    size_t size[SLOTS];
};

static uint64_t state = 1;

static float uniform(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(state >> 40) / 8388608.0f - 1;
}

static uint32_t or_1(uint32_t n)
{
    return n ? n : 1;
}

static const vkattn_layout *layout_of(const vkattn_merge *m, enum slot slot)
{
    const vkattn_layout *const layouts[SLOTS] = {&m->first_o,    &m->first_lse, &m->second_o,
                                                 &m->second_lse, &m->o,         &m->lse};
    return layouts[slot];
}

static bool is_lse(enum slot slot)
{
    return slot == FIRST_LSE || slot == SECOND_LSE || slot == LSE;
}

static vkattn_dtype type_of(const vkattn_merge *m, enum slot slot)
{
    return is_lse(slot) ? VKATTN_F32 : slot == O ? m->o_type : m->part_type;
}

/* The element's number in its tensor. */
static size_t at(const vkattn_merge *m, enum slot slot, uint32_t b, uint32_t h, uint32_t i, uint32_t r)
{
    const vkattn_layout *l = layout_of(m, slot);
    const size_t width = is_lse(slot) ? 1 : m->dim_v;
    if (l->order == VKATTN_STRIDED)
        return (size_t)(b * l->batch + h * l->head + i * l->row + r);
    if (l->order == VKATTN_BTHD)
        return (((size_t)b * m->len_q + i) * or_1(m->heads) + h) * width + r;
    return (((size_t)b * or_1(m->heads) + h) * m->len_q + i) * width + r;
}

static void *element(const struct trial *t, enum slot slot, uint32_t b, uint32_t h, uint32_t i, uint32_t r)
{
    return t->data[slot] + at(&t->merge, slot, b, h, i, r) * vkattn_dtype_size(type_of(&t->merge, slot));
}

static void put(struct trial *t, enum slot slot, uint32_t b, uint32_t h, uint32_t i, uint32_t r, float x)
{
    vkattn_encode(type_of(&t->merge, slot), x, element(t, slot, b, h, i, r));
}

/* Rows in turn: both parts, one of them empty and holding NaN, both empty, a NaN, +infinity, far apart, a NaN in O. */
enum { KINDS = 9 };

static void fill_row(struct trial *t, uint32_t b, uint32_t h, uint32_t i, unsigned kind)
{
    const vkattn_merge *m = &t->merge;
    const float lse[KINDS][2] = {
        {uniform(), uniform()},           {-INFINITY, 3 * uniform()}, {3 * uniform(), -INFINITY},
        {-INFINITY, -INFINITY},           {NAN, uniform()},           {uniform(), INFINITY},
        {40 * uniform(), 40 * uniform()}, {1e30f, uniform()},         {uniform(), uniform()}};
    put(t, FIRST_LSE, b, h, i, 0, lse[kind][0]);
    put(t, SECOND_LSE, b, h, i, 0, lse[kind][1]);
    for (uint32_t r = 0; r < m->dim_v; r++) {
        const bool nan = kind == 8 && r % 3 == 1;
        put(t, FIRST_O, b, h, i, r, isinf(lse[kind][0]) ? NAN : 2 * uniform());
        put(t, SECOND_O, b, h, i, r, nan || isinf(lse[kind][1]) ? NAN : 2 * uniform());
    }
}

static struct trial make(const vkattn_merge *merge)
{
    struct trial t = {.merge = *merge};
    const uint32_t batch = or_1(merge->batch), heads = or_1(merge->heads);
    for (enum slot s = 0; s < SLOTS; s++) {
        if (s == LSE && !(merge->flags & VKATTN_WRITE_LSE))
            continue;
        const size_t last = at(merge, s, batch - 1, heads - 1, merge->len_q - 1, is_lse(s) ? 0 : merge->dim_v - 1);
        t.size[s] = (last + 1) * vkattn_dtype_size(type_of(merge, s));
        t.data[s] = malloc((t.size[s] + 3) / 4 * 4);
        cr_assert(t.data[s]);
        memset(t.data[s], gpu_poison, (t.size[s] + 3) / 4 * 4);
    }
    unsigned kind = 0;
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < merge->len_q; i++)
                fill_row(&t, b, h, i, kind++ % KINDS);
    return t;
}

static void discard(struct trial *t)
{
    for (enum slot s = 0; s < SLOTS; s++)
        free(t->data[s]);
}

/* ---- Running --------------------------------------------------------------------------------------------------- */

struct session {
    const vkattn_plan *plan;
    vkattn_merge_buffers buffers;
    const vkattn_lengths *lengths;
};

static vkattn_status record(void *user, VkCommandBuffer cmd)
{
    const struct session *s = user;
    return vkattn_record_merge(s->plan, cmd, &s->buffers, s->lengths);
}

static vkattn_buffer *slot_buffer(vkattn_merge_buffers *b, enum slot slot)
{
    vkattn_buffer *const all[SLOTS] = {&b->first_o, &b->first_lse, &b->second_o, &b->second_lse, &b->o, &b->lse};
    return all[slot];
}

/* Merge into t's outputs; `o` and `lse` say which slots' memory they use: their own, or an input's. False where the
 * device has no such access. */
static bool run(vkattn_context *context, struct trial *t, vkattn_access access, enum slot o, enum slot lse,
                const vkattn_lengths *lengths)
{
    const vkattn_options options = {.access = access};
    vkattn_plan *plan;
    const vkattn_status status = vkattn_plan_create_merge(context->vkattn, &t->merge, &options, &plan);
    if (status == VKATTN_UNSUPPORTED)
        return false;
    gpu_ok(status);
    struct session session = {.plan = plan, .lengths = lengths};
    vkattn_mapped mapped[SLOTS + 1] = {0};
    for (enum slot s = 0; s < SLOTS; s++) {
        const enum slot memory = s == O ? o : s == LSE ? lse : s;
        if (!t->data[s])
            continue;
        if (memory == s) {
            gpu_ok(vkattn_mapped_create(context, (t->size[s] + 3) / 4 * 4, &mapped[s]));
            memcpy(mapped[s].data, t->data[s], t->size[s]);
        }
        *slot_buffer(&session.buffers, s) = (vkattn_buffer){.buffer = mapped[memory].buffer, .size = t->size[s]};
    }
    const VkDeviceSize size = vkattn_plan_workspace(plan).size;
    gpu_ok(vkattn_mapped_create(context, size, &mapped[SLOTS]));
    session.buffers.workspace = (vkattn_buffer){.buffer = mapped[SLOTS].buffer, .size = size};
    gpu_ok(vkattn_run(context, record, &session, NULL));
    memcpy(t->data[O], mapped[o].data, t->size[O]);
    if (t->data[LSE])
        memcpy(t->data[LSE], mapped[lse].data, t->size[LSE]);
    for (unsigned s = 0; s <= SLOTS; s++)
        if (mapped[s].buffer)
            vkattn_mapped_destroy(context, &mapped[s]);
    vkattn_plan_destroy(plan);
    return true;
}

static bool within(double value, double reference, double bound)
{
    if (isinf(bound))
        return true;
    if (isnan(reference) || isinf(reference))
        return isnan(reference) ? isnan(value) : value == reference;
    return fabs(value - reference) <= bound;
}

static void expect_right(const struct trial *t, const vkattn_lengths *lengths, const char *what)
{
    const vkattn_merge *m = &t->merge;
    const uint32_t batch = or_1(m->batch), heads = or_1(m->heads), len = lengths ? lengths->len_q : m->len_q;
    const size_t rows = (size_t)batch * heads * len + 1;
    vkattn_reference want = {.o = calloc(rows * m->dim_v, sizeof(double)),
                             .o_bound = calloc(rows * m->dim_v, sizeof(double)),
                             .lse = calloc(rows, sizeof(double)),
                             .lse_bound = calloc(rows, sizeof(double))};
    const vkattn_merge_tensors in = {t->data[FIRST_O], (const float *)(void *)t->data[FIRST_LSE], t->data[SECOND_O],
                                     (const float *)(void *)t->data[SECOND_LSE]};
    gpu_ok(vkattn_reference_merge(m, &in, lengths, &want));
    size_t row = 0;
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < len; i++, row++) {
                for (uint32_t r = 0; r < m->dim_v; r++) {
                    const double x = (double)vkattn_decode(m->o_type, element(t, O, b, h, i, r));
                    const size_t n = row * m->dim_v + r;
                    cr_assert(within(x, want.o[n], want.o_bound[n]), "%s: O[%u,%u,%u,%u] is %g, expected %g within %g",
                              what, b, h, i, r, x, want.o[n], want.o_bound[n]);
                }
                if (!t->data[LSE])
                    continue;
                const double x = (double)vkattn_decode(VKATTN_F32, element(t, LSE, b, h, i, 0));
                cr_assert(within(x, want.lse[row], want.lse_bound[row]),
                          "%s: LSE[%u,%u,%u] is %g, expected %g within %g", what, b, h, i, x, want.lse[row],
                          want.lse_bound[row]);
            }
    free(want.o), free(want.o_bound), free(want.lse), free(want.lse_bound);
}

static void merge_and_compare(vkattn_context *context, const vkattn_merge *merge, const vkattn_lengths *lengths,
                              const char *what)
{
    for (vkattn_access access = VKATTN_ACCESS_ADDRESS; access <= VKATTN_ACCESS_DESCRIPTOR; access++) {
        struct trial t = make(merge);
        if (run(context, &t, access, O, LSE, lengths))
            expect_right(&t, lengths, what);
        discard(&t);
    }
}

Test(merge, all_types_and_widths)
{
    vkattn_context *context = gpu_open(0);
    const uint32_t widths[] = {1, 3, 8, 64, 130, 576};
    for (vkattn_dtype part = VKATTN_F32; part <= VKATTN_BF16; part++)
        for (vkattn_dtype o = VKATTN_F32; o <= VKATTN_BF16; o++)
            for (size_t w = 0; w < COUNT(widths); w++) {
                const vkattn_merge m = {.batch = 2,
                                        .heads = 3,
                                        .len_q = 5,
                                        .dim_v = widths[w],
                                        .part_type = part,
                                        .o_type = o,
                                        .flags = VKATTN_WRITE_LSE};
                char what[80];
                snprintf(what, sizeof what, "parts of type %d to %d, dim_v %u", (int)part, (int)o, widths[w]);
                merge_and_compare(context, &m, NULL, what);
            }
    gpu_close(context);
}

Test(merge, base_2_strides_and_lengths)
{
    vkattn_context *context = gpu_open(0);
    vkattn_merge m = {.batch = 2,
                      .heads = 3,
                      .len_q = 7,
                      .dim_v = 33,
                      .part_type = VKATTN_F16,
                      .o_type = VKATTN_BF16,
                      .flags = VKATTN_WRITE_LSE | VKATTN_LSE_BASE_2,
                      .first_o = STRIDES(811, 35, 105),
                      .first_lse = STRIDES(3, 7, 9),
                      .second_o = {.order = VKATTN_BTHD},
                      .second_lse = STRIDES(0, 1, 3),
                      .o = STRIDES(777, 247, 35),
                      .lse = {.order = VKATTN_BTHD}};
    merge_and_compare(context, &m, NULL, "strides, base 2");
    merge_and_compare(context, &m, &(vkattn_lengths){4, 99}, "less than the capacity");
    merge_and_compare(context, &m, &(vkattn_lengths){0, 0}, "no rows");
    m.flags = 0;
    merge_and_compare(context, &m, NULL, "no LSE");
    gpu_close(context);
}

Test(merge, in_place)
{
    vkattn_context *context = gpu_open(0);
    const enum slot o[] = {FIRST_O, SECOND_O}, lse[] = {FIRST_LSE, SECOND_LSE};
    for (vkattn_dtype type = VKATTN_F32; type <= VKATTN_BF16; type++)
        for (int into = 0; into < 2; into++)
            for (vkattn_access access = VKATTN_ACCESS_ADDRESS; access <= VKATTN_ACCESS_DESCRIPTOR; access++) {
                struct trial t = make(&(vkattn_merge){.heads = 5,
                                                      .len_q = 9,
                                                      .dim_v = 131,
                                                      .part_type = type,
                                                      .o_type = type,
                                                      .flags = VKATTN_WRITE_LSE});
                if (run(context, &t, access, o[into], lse[into], NULL))
                    expect_right(&t, NULL, "in place");
                discard(&t);
            }
    gpu_close(context);
}

/* Gaps between rows stay as they were. */
Test(merge, writes_elements_alone)
{
    vkattn_context *context = gpu_open(0);
    const vkattn_merge m = {.heads = 3,
                            .len_q = 4,
                            .dim_v = 5,
                            .o_type = VKATTN_F16,
                            .flags = VKATTN_WRITE_LSE,
                            .o = STRIDES(0, 29, 7),
                            .lse = STRIDES(0, 1, 4)};
    struct trial t = make(&m);
    cr_assert(run(context, &t, VKATTN_ACCESS_AUTO, O, LSE, NULL));
    for (uint32_t h = 0; h < 3; h++)
        for (uint32_t i = 0; i < 4; i++)
            memset(element(&t, O, 0, h, i, 0), gpu_poison, 10);
    for (size_t n = 0; n < t.size[O]; n++)
        cr_assert(t.data[O][n] == gpu_poison, "byte %zu of O", n);
    discard(&t);
    gpu_close(context);
}

/* ---- Attention over the union of the keys ----------------------------------------------------------------------- */

enum { HEADS = 2, ROWS = 3, KEYS = 37, CUT = 14, DIM = 16 };

static void attend(vkattn_context *context, uint32_t keys, const float *q, const float *k, const float *v, float *o,
                   float *lse)
{
    /* Strides of the whole, so that either half of the keys is read in place. */
    const vkattn_problem p = {.heads = HEADS,
                              .len_q = ROWS,
                              .len_kv = keys,
                              .dim_qk = DIM,
                              .flags = VKATTN_WRITE_LSE,
                              .k = STRIDES(0, KEYS * DIM, DIM),
                              .v = STRIDES(0, KEYS * DIM, DIM)};
    const vkattn_tensors tensors = {.q = q, .k = k, .v = v, .o = o, .lse = lse};
    gpu_ok(vkattn_attend(context->vkattn, &p, NULL, &tensors, NULL));
}

Test(merge, equals_attention_over_the_union)
{
    vkattn_context *context = gpu_open(0);
    static float q[HEADS * ROWS * DIM], k[HEADS * KEYS * DIM], v[HEADS * KEYS * DIM];
    static float whole_o[HEADS * ROWS * DIM], whole_lse[HEADS * ROWS];
    for (size_t n = 0; n < COUNT(q); n++)
        q[n] = 2 * uniform();
    for (size_t n = 0; n < COUNT(k); n++)
        k[n] = 2 * uniform(), v[n] = uniform();
    attend(context, KEYS, q, k, v, whole_o, whole_lse);

    struct trial t = make(&(vkattn_merge){.heads = HEADS, .len_q = ROWS, .dim_v = DIM, .flags = VKATTN_WRITE_LSE});
    attend(context, CUT, q, k, v, (float *)(void *)t.data[FIRST_O], (float *)(void *)t.data[FIRST_LSE]);
    attend(context, KEYS - CUT, q, k + CUT * DIM, v + CUT * DIM, (float *)(void *)t.data[SECOND_O],
           (float *)(void *)t.data[SECOND_LSE]);
    cr_assert(run(context, &t, VKATTN_ACCESS_AUTO, O, LSE, NULL));
    for (size_t n = 0; n < COUNT(whole_o); n++)
        cr_expect_float_eq(((float *)(void *)t.data[O])[n], whole_o[n], 2e-6f, "O %zu", n);
    for (size_t n = 0; n < COUNT(whole_lse); n++)
        cr_expect_float_eq(((float *)(void *)t.data[LSE])[n], whole_lse[n], 1e-5f, "LSE %zu", n);
    discard(&t);
    gpu_close(context);
}

/* ---- Misuse ----------------------------------------------------------------------------------------------------- */

Test(merge, wrong_merges)
{
    vkattn_context *context = gpu_open(0);
    const vkattn_merge good = {.len_q = 2, .dim_v = 4};
    vkattn_plan *plan;
    const struct {
        vkattn_merge merge;
        vkattn_options options;
        const char *part;
    } cases[] = {
        {{.len_q = 2}, {0}, "dim_v is 0"},
        {{.len_q = 2, .dim_v = 577}, {0}, "dim_v is 577"},
        {{.len_q = 1u << 29, .dim_v = 4}, {0}, "len_q is 536870912"},
        {{.len_q = 2, .dim_v = 4, .part_type = (vkattn_dtype)3}, {0}, "part_type is 3"},
        {{.len_q = 2, .dim_v = 4, .o_type = (vkattn_dtype)7}, {0}, "o_type is 7"},
        {{.len_q = 2, .dim_v = 4, .flags = VKATTN_CAUSAL}, {0}, "mean nothing in a merge"},
        {{.len_q = 2, .dim_v = 4, .o = STRIDES(0, 0, 1)}, {0}, "o is an output"},
        {{.len_q = 2, .dim_v = 4, .first_o = {.row = 4}}, {0}, "first_o has strides"},
        {good, {.kernel = "fwd_rows"}, "must be 0 in a merge"},
        {good, {.parts = 2}, "must be 0 in a merge"},
        {good, {.access = (vkattn_access)9}, "options.access is 9"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        gpu_expect(vkattn_plan_create_merge(context->vkattn, &cases[i].merge, &cases[i].options, &plan), VKATTN_INVALID,
                   cases[i].part);
    gpu_expect(vkattn_plan_create_merge(NULL, &good, NULL, &plan), VKATTN_INVALID, "device is NULL");
    gpu_expect(vkattn_plan_create_merge(context->vkattn, NULL, NULL, &plan), VKATTN_INVALID, "merge is NULL");
    gpu_expect(vkattn_plan_create_merge(context->vkattn, &good, NULL, NULL), VKATTN_INVALID, "plan is NULL");
    gpu_close(context);
}

struct misuse {
    const vkattn_plan *plan;
    vkattn_merge_buffers buffers;
    vkattn_lengths lengths;
    const char *part;
};

static vkattn_status record_wrong(void *user, VkCommandBuffer cmd)
{
    const struct misuse *m = user;
    gpu_expect(vkattn_record_merge(m->plan, cmd, &m->buffers, &m->lengths), VKATTN_INVALID, m->part);
    return VKATTN_OK;
}

static vkattn_status record_wrong_kinds(void *user, VkCommandBuffer cmd)
{
    vkattn_plan *const *plans = user;
    const vkattn_buffers attention = {0};
    const vkattn_merge_buffers merge = {0};
    gpu_expect(vkattn_record(plans[0], cmd, &attention, NULL), VKATTN_INVALID, "plan is a merge's");
    gpu_expect(vkattn_record_merge(plans[1], cmd, &merge, NULL), VKATTN_INVALID, "plan is an attention's");
    gpu_expect(vkattn_record_merge(NULL, cmd, &merge, NULL), VKATTN_INVALID, "plan is NULL");
    gpu_expect(vkattn_record_merge(plans[0], cmd, NULL, NULL), VKATTN_INVALID, "buffers is NULL");
    return VKATTN_OK;
}

Test(merge, wrong_recordings)
{
    vkattn_context *context = gpu_open(0);
    const vkattn_merge merge = {.len_q = 2, .dim_v = 4, .flags = VKATTN_WRITE_LSE};
    vkattn_plan *plans[2];
    gpu_ok(vkattn_plan_create_merge(context->vkattn, &merge, NULL, &plans[0]));
    gpu_ok(vkattn_plan_create(context->vkattn, &(vkattn_problem){.len_q = 1, .len_kv = 1, .dim_qk = 4},
                              &(vkattn_options){.kernel = "fwd_rows"}, &plans[1]));
    cr_expect_str_eq(vkattn_plan_kernel(plans[0]), "fwd_merge");
    gpu_ok(vkattn_run(context, record_wrong_kinds, plans, NULL));

    vkattn_mapped mapped;
    gpu_ok(vkattn_mapped_create(context, 4096, &mapped));
    const vkattn_buffer o = {.buffer = mapped.buffer, .size = 32}, lse = {.buffer = mapped.buffer, .size = 8};
    const vkattn_buffer workspace = {.buffer = mapped.buffer, .size = 4096};
    const vkattn_merge_buffers good = {o, lse, o, lse, o, lse, workspace};
    static const char *const names[] = {"first_o", "first_lse", "second_o", "second_lse", "o", "lse", "workspace"};
    for (int n = 0; n < 7; n++) {
        char part[64];
        struct misuse m = {.plan = plans[0], .buffers = good, .lengths = {2, 0}, .part = part};
        vkattn_buffer *wrong = (vkattn_buffer *)(void *)((char *)&m.buffers + (size_t)n * sizeof o);
        snprintf(part, sizeof part, "buffers.%s.", names[n]);
        wrong->size = 4;
        gpu_ok(vkattn_run(context, record_wrong, &m, NULL));
        *wrong = (vkattn_buffer){0};
        gpu_ok(vkattn_run(context, record_wrong, &m, NULL));
    }
    struct misuse m = {.plan = plans[0], .buffers = good, .lengths = {3, 0}, .part = "lengths.len_q is 3"};
    gpu_ok(vkattn_run(context, record_wrong, &m, NULL));
    vkattn_mapped_destroy(context, &mapped);
    vkattn_plan_destroy(plans[0]);
    vkattn_plan_destroy(plans[1]);
    gpu_close(context);
}

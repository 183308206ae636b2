/* K and V in pages without access behind the last key, and wherever nobody looks; every other input before such a page.
 * A kernel that reads a page that it may not dies. Each run is repeated, since llvmpipe's empty last iterations crash
 * now and then only (KERNELS.md). */
#include "pages.h"

#include "problem.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

TestSuite(guard, .timeout = 300);

enum {
    ROWS = 16,
    KEYS = 511,
    MARGIN = 64, /* keys beside a seen one that a tile may read along with it */
    PLAIN_SIZE = 8 << 20
};

/* Keys begin .. end - 1 are seen by somebody. */
struct range {
    int begin, end;
};

static const int32_t length_100 = 100, length_0 = 0, prefix_7 = 7;

static const struct limit {
    const char *name;
    uint32_t flags;
    vkattn_align align;
    int32_t left, right;
    uint32_t len_kv; /* of the call */
    const int32_t *kv_lengths, *q_lengths, *prefix;
    struct range seen[2];
} limits[] = {
    {.name = "no limit", .len_kv = KEYS, .seen = {{0, KEYS}}},
    {.name = "causal", .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT, .len_kv = KEYS, .seen = {{0, ROWS}}},
    {.name = "window",
     .flags = VKATTN_LEFT | VKATTN_RIGHT,
     .align = VKATTN_BOTTOM_RIGHT,
     .left = 3,
     .right = 3,
     .len_kv = KEYS,
     .seen = {{KEYS - ROWS - 3, KEYS}}},
    {.name = "window and prefix",
     .flags = VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_PREFIX,
     .align = VKATTN_BOTTOM_RIGHT,
     .left = 3,
     .len_kv = KEYS,
     .prefix = &prefix_7,
     .seen = {{0, 7}, {KEYS - ROWS - 3, KEYS}}},
    {.name = "an empty band", .flags = VKATTN_LEFT, .align = VKATTN_TOP_LEFT, .left = -1000, .len_kv = KEYS},
    {.name = "a key length", .flags = VKATTN_KV_LENGTHS, .len_kv = KEYS, .kv_lengths = &length_100, .seen = {{0, 100}}},
    {.name = "a key length of 0", .flags = VKATTN_KV_LENGTHS, .len_kv = KEYS, .kv_lengths = &length_0},
    {.name = "a query length of 0", .flags = VKATTN_Q_LENGTHS, .len_kv = KEYS, .q_lengths = &length_0},
    {.name = "a shorter call", .len_kv = 101, .seen = {{0, 101}}},
};

/* ---- What to say when it happens ------------------------------------------------------------------------------- */

static char current[160]; /* the case that runs */

static void on_segv(int signal_number)
{
    static const char text[] = "guard: a page that nobody may touch was read: ";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 || write(STDERR_FILENO, current, strlen(current)) < 0 ||
        write(STDERR_FILENO, "\n", 1) < 0)
        _exit(1);
    signal(signal_number, SIG_DFL); /* and the instruction again, for Criterion to see */
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

struct setting {
    struct pages_device device;
    struct pages k, v, plain;
    size_t plain_used;
    char *spaces[3];
    size_t space_size;
};

static struct pages import_space(struct setting *s, int index, size_t size)
{
    /* One page more than is imported, which never becomes accessible. */
    s->spaces[index] = pages_reserve(size + s->device.page);
    cr_assert(mprotect(s->spaces[index], size, PROT_READ | PROT_WRITE) == 0);
    return pages_import(&s->device, s->spaces[index], size);
}

static struct setting make_setting(vkattn_context *context, size_t row_size)
{
    struct setting s = {.device = pages_open(context)};
    const size_t page = s.device.page;
    s.space_size = (KEYS * row_size + 2 * page - 1) / page * page;
    s.k = import_space(&s, 0, s.space_size);
    s.v = import_space(&s, 1, s.space_size);
    s.plain = import_space(&s, 2, PLAIN_SIZE);
    return s;
}

static void free_setting(struct setting *s)
{
    pages_free(&s->device, &s->k);
    pages_free(&s->device, &s->v);
    pages_free(&s->device, &s->plain);
    pages_close(&s->device);
    munmap(s->spaces[0], s->space_size + s->device.page);
    munmap(s->spaces[1], s->space_size + s->device.page);
    munmap(s->spaces[2], PLAIN_SIZE + s->device.page);
}

/* A tensor among pages that are all accessible. */
static vkattn_buffer put_plain(struct setting *s, const void *data, size_t size)
{
    const vkattn_buffer buffer = {.buffer = s->plain.buffer, .offset = s->plain_used, .size = size};
    cr_assert(s->plain_used + size <= PLAIN_SIZE);
    if (data)
        memcpy(s->plain.data + s->plain_used, data, size);
    s->plain_used += (size + 255) / 256 * 256;
    return buffer;
}

/* A tensor that ends, rounded up to a word, where its pages do. */
static vkattn_buffer put_last(const struct pages *p, const void *data, size_t size)
{
    const size_t offset = p->size - (size + 3) / 4 * 4;
    memcpy(p->data + offset, data, size);
    return (vkattn_buffer){.buffer = p->buffer, .offset = offset, .size = size};
}

static bool is_near(const struct limit *limit, int first_key, int last_key)
{
    for (size_t i = 0; i < COUNT(limit->seen); i++) {
        const struct range r = limit->seen[i];
        if (r.begin < r.end && last_key >= r.begin - MARGIN && first_key < r.end + MARGIN)
            return true;
    }
    return false;
}

/* Take away the pages of a tensor that hold no key near one that is seen. Returns how many. */
static size_t protect_unseen(const struct setting *s, const struct pages *p, const vkattn_buffer *tensor,
                             size_t row_size, const struct limit *limit)
{
    size_t count = 0;
    for (size_t at = 0; at < p->size; at += s->device.page) {
        const long first = ((long)at - (long)tensor->offset) / (long)row_size;
        const long last = ((long)(at + s->device.page) - 1 - (long)tensor->offset) / (long)row_size;
        if (is_near(limit, (int)first, (int)last))
            continue;
        cr_assert(mprotect(p->data + at, s->device.page, PROT_NONE) == 0);
        count++;
    }
    return count;
}

static void unprotect(const struct pages *p)
{
    cr_assert(mprotect(p->data, p->size, PROT_READ | PROT_WRITE) == 0);
}

/* ---- Cases ----------------------------------------------------------------------------------------------------- */

static vkattn_problem problem_of(const struct limit *limit, vkattn_dtype type, uint32_t dim)
{
    return (vkattn_problem){.len_q = ROWS,
                            .len_kv = KEYS,
                            .dim_qk = dim,
                            .kv_type = type,
                            .flags = limit->flags,
                            .align = limit->align,
                            .left = limit->left,
                            .right = limit->right};
}

static vkattn_buffers put_case(struct setting *s, const struct gpu_case *c, const struct limit *limit,
                               const vkattn_plan *plan, size_t row_size)
{
    vkattn_buffers b = {0};
    s->plain_used = 0;
    b.q = put_plain(s, c->data[TENSOR_Q], c->size[TENSOR_Q]);
    b.k = put_last(&s->k, c->data[TENSOR_K], limit->len_kv * row_size);
    b.v = put_last(&s->v, c->data[TENSOR_V], limit->len_kv * row_size);
    b.o = put_plain(s, c->data[TENSOR_O], c->size[TENSOR_O]);
    b.workspace = put_plain(s, NULL, (size_t)vkattn_plan_workspace(plan).size);
    if (limit->kv_lengths)
        b.kv_lengths = put_plain(s, limit->kv_lengths, sizeof *limit->kv_lengths);
    if (limit->q_lengths)
        b.q_lengths = put_plain(s, limit->q_lengths, sizeof *limit->q_lengths);
    if (limit->prefix)
        b.prefix = put_plain(s, limit->prefix, sizeof *limit->prefix);
    return b;
}

static void run_case(struct setting *s, const struct limit *limit, const vkattn_problem *p, const vkattn_plan *plan,
                     int times)
{
    const vkattn_lengths lengths = {ROWS, limit->len_kv};
    const size_t row_size = p->dim_qk * vkattn_dtype_size(p->kv_type);
    struct gpu_case c = gpu_case_make(p);
    c.kv_lengths = limit->kv_lengths;
    c.q_lengths = limit->q_lengths;
    c.prefix = limit->prefix;
    const vkattn_buffers b = put_case(s, &c, limit, plan, row_size);
    const size_t taken = protect_unseen(s, &s->k, &b.k, row_size, limit);
    protect_unseen(s, &s->v, &b.v, row_size, limit);
    cr_expect(limit->seen[0].end == KEYS || taken > 0, "%s takes no page away", current);
    pages_run(&s->device, plan, &b, &lengths, times);
    unprotect(&s->k);
    unprotect(&s->v);
    memcpy(c.data[TENSOR_O], s->plain.data + b.o.offset, c.size[TENSOR_O]);
    gpu_case_expect(&c, &lengths, current);
    gpu_case_free(&c);
}

/* Every limit in every kernel. */
static void run_limits(vkattn_dtype type, uint32_t dim)
{
    signal(SIGSEGV, on_segv);
    vkattn_context *context = gpu_open(0);
    struct setting s = make_setting(context, dim * vkattn_dtype_size(type));
    const int times = gpu_is_slow(context) ? 2 : 60;
    for (uint32_t k = 0; vkattn_kernel_name(k); k++)
        for (size_t i = 0; i < COUNT(limits); i++) {
            const vkattn_problem p = problem_of(&limits[i], type, dim);
            const vkattn_options options = {.kernel = vkattn_kernel_name(k), .access = VKATTN_ACCESS_ADDRESS};
            vkattn_plan *plan = gpu_plan_if_can(s.device.vkattn, &p, &options);
            if (plan == NULL)
                continue;
            snprintf(current, sizeof current, "%s, type %d, d = %u, %s", options.kernel, (int)type, dim,
                     limits[i].name);
            run_case(&s, &limits[i], &p, plan, times);
            vkattn_plan_destroy(plan);
        }
    free_setting(&s);
    gpu_close(context);
}

Test(guard, unseen_pages_of_f32)
{
    run_limits(VKATTN_F32, 32);
}

Test(guard, unseen_pages_of_f16)
{
    run_limits(VKATTN_F16, 32);
}

Test(guard, unseen_pages_of_odd_rows)
{
    run_limits(VKATTN_F16, 33);
}

/* ---- Every input before a page without access ------------------------------------------------------------------ */

enum { MANY_KEYS = 41, MOST_ROWS = 75, NARROW = 8, INPUT_SIZE = 64 << 10 };

static const int32_t many_keys = MANY_KEYS, few_keys = 30, prefix_5 = 5;

/* Inputs beside Q, K and V, large enough for any of the cases. */
struct extras {
    unsigned char mask[2 * MOST_ROWS * MANY_KEYS];
    float bias[2 * MOST_ROWS * MANY_KEYS]; /* or so many halves */
    float alibi[2], sinks[2];
    int32_t q_segments[MOST_ROWS], kv_segments[MANY_KEYS];
};

static void fill_extras(struct extras *extras, struct gpu_case *c)
{
    const vkattn_dtype type = c->problem.bias_type;
    for (size_t i = 0; i < COUNT(extras->mask); i++) {
        extras->mask[i] = (unsigned char)(i % 7 != 0 ? 0xed : 0);
        vkattn_encode(type, (float)(i % 11) / 4, (char *)extras->bias + i * vkattn_dtype_size(type));
    }
    for (int i = 0; i < MOST_ROWS; i++)
        extras->q_segments[i] = i / 40;
    for (int i = 0; i < MANY_KEYS; i++)
        extras->kv_segments[i] = i / 21; /* the last rows see the last key */
    extras->alibi[0] = extras->sinks[1] = 0.5f;
    extras->alibi[1] = extras->sinks[0] = 0.125f;
    c->mask = extras->mask;
    c->bias = extras->bias;
    c->alibi = extras->alibi;
    c->sinks = extras->sinks;
    c->q_segments = extras->q_segments;
    c->kv_segments = extras->kv_segments;
    c->kv_lengths = &many_keys;
    c->q_lengths = &few_keys;
    c->prefix = &prefix_5;
}

static size_t size_of(const vkattn_problem *problem, enum tensor_id id)
{
    struct problem p;
    uint64_t bits;
    gpu_ok(vkattn_problem_canonical(problem, sizeof *problem, &p));
    const vkattn_lengths whole = {p.len_q, p.len_kv};
    cr_assert(vkattn_tensor_extent(&p, id, &whole, &bits));
    return (size_t)(bits + 7) / 8;
}

enum { LIMITS = VKATTN_CAUSAL | VKATTN_PREFIX | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS };

/* A tensor's pages, with one that never becomes accessible behind them. */
struct input {
    char *space;
    struct pages pages;
};

static struct input make_input(struct pages_device *d)
{
    struct input input = {.space = pages_reserve(INPUT_SIZE + d->page)};
    cr_assert(mprotect(input.space, INPUT_SIZE, PROT_READ | PROT_WRITE) == 0);
    input.pages = pages_import(d, input.space, INPUT_SIZE);
    return input;
}

static void free_input(const struct pages_device *d, struct input *input)
{
    pages_free(d, &input->pages);
    munmap(input->space, INPUT_SIZE + d->page);
}

static vkattn_buffers put_inputs(struct setting *s, const struct input inputs[TENSOR_PUBLIC_COUNT],
                                 const struct gpu_case *c, const vkattn_plan *plan)
{
    const vkattn_tensors t = gpu_case_tensors(c);
    vkattn_buffers b = {0};
    const struct {
        enum tensor_id id;
        const void *data;
        vkattn_buffer *buffer;
    } all[] = {{TENSOR_Q, t.q, &b.q},
               {TENSOR_K, t.k, &b.k},
               {TENSOR_V, t.v, &b.v},
               {TENSOR_MASK, t.mask, &b.mask},
               {TENSOR_BIAS, t.bias, &b.bias},
               {TENSOR_ALIBI, t.alibi, &b.alibi},
               {TENSOR_SINKS, t.sinks, &b.sinks},
               {TENSOR_KV_LENGTHS, t.kv_lengths, &b.kv_lengths},
               {TENSOR_Q_LENGTHS, t.q_lengths, &b.q_lengths},
               {TENSOR_PREFIX, t.prefix, &b.prefix},
               {TENSOR_Q_SEGMENTS, t.q_segments, &b.q_segments},
               {TENSOR_KV_SEGMENTS, t.kv_segments, &b.kv_segments}};
    for (size_t i = 0; i < COUNT(all); i++)
        *all[i].buffer = put_last(&inputs[all[i].id].pages, all[i].data, size_of(&c->problem, all[i].id));
    s->plain_used = 0;
    b.o = put_plain(s, c->data[TENSOR_O], c->size[TENSOR_O]);
    b.workspace = put_plain(s, NULL, (size_t)vkattn_plan_workspace(plan).size);
    return b;
}

static void run_inputs(struct setting *s, const struct input inputs[TENSOR_PUBLIC_COUNT], const vkattn_problem *p,
                       const char *kernel, int times)
{
    struct extras extras;
    const vkattn_options options = {.kernel = kernel, .access = VKATTN_ACCESS_ADDRESS};
    vkattn_plan *plan = gpu_plan_if_can(s->device.vkattn, p, &options);
    if (plan == NULL)
        return;
    vkattn_report report;
    gpu_ok(vkattn_explain(s->device.vkattn, p, &options, &report));
    struct gpu_case c = gpu_case_make(p);
    c.p_type = report.candidates[report.chosen].p_type;
    fill_extras(&extras, &c);
    snprintf(current, sizeof current, "%s, %u rows, mask kind %d: an input", kernel, p->len_q, (int)p->mask_kind);
    const vkattn_buffers b = put_inputs(s, inputs, &c, plan);
    pages_run(&s->device, plan, &b, NULL, times);
    memcpy(c.data[TENSOR_O], s->plain.data + b.o.offset, c.size[TENSOR_O]);
    gpu_case_expect(&c, NULL, current);
    gpu_case_free(&c);
    vkattn_plan_destroy(plan);
}

/* CASES 3, and its kind: nothing is read past the last row of a mask, a bias, Q, or any other input. With limits, rows
 * and keys end before the tensors do; without, the last key of the last row is seen. */
Test(guard, no_input_is_read_past_its_end)
{
    static const struct {
        uint32_t rows;
        uint32_t limits;
        vkattn_dtype bias_type;
    } variants[] = {
        {3, LIMITS, VKATTN_F16}, {MOST_ROWS, LIMITS, VKATTN_F16}, {3, 0, VKATTN_F16}, {MOST_ROWS, 0, VKATTN_F32}};
    signal(SIGSEGV, on_segv);
    vkattn_context *context = gpu_open(0);
    struct setting s = make_setting(context, NARROW * sizeof(uint16_t));
    struct input inputs[TENSOR_PUBLIC_COUNT];
    const int times = gpu_is_slow(context) ? 2 : 20;
    for (int id = 0; id < TENSOR_PUBLIC_COUNT; id++)
        inputs[id] = make_input(&s.device);
    for (uint32_t k = 0; vkattn_kernel_name(k); k++)
        for (vkattn_mask_kind kind = VKATTN_MASK_BYTES; kind <= VKATTN_MASK_BITS; kind++)
            for (size_t i = 0; i < COUNT(variants); i++) {
                const vkattn_problem p = {.heads = 2,
                                          .len_q = variants[i].rows,
                                          .len_kv = MANY_KEYS,
                                          .dim_qk = NARROW,
                                          .q_type = VKATTN_F16,
                                          .kv_type = VKATTN_F16,
                                          .bias_type = variants[i].bias_type,
                                          .mask_kind = kind,
                                          .mask_true = VKATTN_TRUE_ATTENDS,
                                          .align = VKATTN_TOP_LEFT,
                                          .flags = variants[i].limits | VKATTN_SEGMENTS | VKATTN_BIAS | VKATTN_ALIBI |
                                                   VKATTN_SINKS};
                run_inputs(&s, inputs, &p, vkattn_kernel_name(k), times);
            }
    for (int id = 0; id < TENSOR_PUBLIC_COUNT; id++)
        free_input(&s.device, &inputs[id]);
    free_setting(&s);
    gpu_close(context);
}

/* The proof that the above can fail: a call that lies about its last key. */
Test(guard, a_page_without_access_bites, .signal = SIGSEGV)
{
    vkattn_context *context = gpu_open(0);
    struct setting s = make_setting(context, 64 * sizeof(float));
    const vkattn_problem p = problem_of(&limits[0], VKATTN_F32, 64);
    vkattn_plan *plan = gpu_plan_if_can(s.device.vkattn, &p, &(vkattn_options){.kernel = "fwd_rows"});
    struct gpu_case c = gpu_case_make(&p);
    vkattn_buffers b = put_case(&s, &c, &limits[0], plan, 64 * sizeof(float));
    b.k.offset += s.device.page;
    pages_run(&s.device, plan, &b, NULL, 1);
}

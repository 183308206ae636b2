/* Tensors larger than a descriptor reaches, and further apart than 32 bits count. */
#include "pages.h"

#include "plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

TestSuite(limits, .timeout = 300);

enum { DIM = 64, ROW_SIZE = DIM * 4 };

/* One query, and K of `keys` rows; V is one row for all keys, whose weights then add up to 1. */
static vkattn_problem long_problem(uint32_t keys)
{
    return (vkattn_problem){
        .len_q = 1, .len_kv = keys, .dim_qk = DIM, .flags = VKATTN_WRITE_LSE, .v = {.order = VKATTN_STRIDED}};
}

/* Keys of a descriptor's range; skips the test where a test cannot fill it. */
static uint32_t keys_of_range(const vkattn_context *context)
{
    const uint64_t range = vkattn_device_caps(context->vkattn)->max_range;
    if (range > UINT64_C(1) << 28)
        cr_skip_test("maxStorageBufferRange is %llu: too much memory for a test", (unsigned long long)range);
    return (uint32_t)(range / ROW_SIZE);
}

/* Every kernel, from host memory; a kernel may refuse. The last key carries the most weight: LSE tells whether it was
 * read. */
static void expect_all_keys_seen(vkattn_context *context, uint32_t keys)
{
    const vkattn_problem p = long_problem(keys);
    struct gpu_case c = gpu_case_make(&p);
    float *last = (float *)c.data[TENSOR_K] + (size_t)(keys - 1) * DIM;
    for (int i = 0; i < DIM; i++)
        last[i] = ((const float *)c.data[TENSOR_Q])[i] * 8;
    for (uint32_t k = 0; vkattn_kernel_name(k); k++) {
        const vkattn_options options = {.kernel = vkattn_kernel_name(k)};
        const vkattn_tensors tensors = gpu_case_tensors(&c);
        vkattn_plan *plan = gpu_plan_if_can(context->vkattn, &p, &options);
        if (plan == NULL)
            continue;
        char what[80];
        snprintf(what, sizeof what, "%s, %u keys", options.kernel, keys);
        gpu_ok(vkattn_attend(context->vkattn, &p, &options, &tensors, NULL));
        gpu_case_expect(&c, NULL, what);
        vkattn_plan_destroy(plan);
    }
    gpu_case_free(&c);
}

/* llvmpipe of Mesa 22.3.6 leaves an invocation's loops after 65,535 rounds of all of them together. */
Test(limits, long_sequences_do_not_end_early)
{
    vkattn_context *context = gpu_open(0);
    if (gpu_is_slow(context))
        cr_skip_test("%s takes 20 s for it", context->listed.name);
    expect_all_keys_seen(context, 40000);
    gpu_close(context);
}

Test(limits, k_may_exceed_the_range_of_a_descriptor)
{
    vkattn_context *context = gpu_open(0);
    if (!context->enabled.buffer_device_address)
        cr_skip_test("the device has no buffer device addresses");
    expect_all_keys_seen(context, keys_of_range(context) + (2u << 20) / ROW_SIZE); /* llvmpipe: 130 MiB */
    gpu_close(context);
}

Test(limits, a_descriptor_that_does_not_reach_is_refused_with_the_reason)
{
    vkattn_context *context = gpu_open(0);
    const uint32_t keys = keys_of_range(context);
    if (!context->enabled.push_descriptor)
        cr_skip_test("the device has no push descriptors");
    const vkattn_problem p = long_problem(keys + 1);
    const vkattn_options options = {.access = VKATTN_ACCESS_DESCRIPTOR};
    const vkattn_tensors nothing = {0};
    vkattn_plan *plan;
    vkattn_report report;
    gpu_expect(vkattn_plan_create(context->vkattn, &p, &options, &plan), VKATTN_UNSUPPORTED, "k spans 134217984 bytes");
    gpu_expect(vkattn_plan_create(context->vkattn, &p, &options, &plan), VKATTN_UNSUPPORTED, "maxStorageBufferRange");
    gpu_expect(vkattn_attend(context->vkattn, &p, &options, &nothing, NULL), VKATTN_UNSUPPORTED, "k spans");
    gpu_expect(vkattn_explain(context->vkattn, &p, &options, &report), VKATTN_UNSUPPORTED, "k spans");
    for (uint32_t i = 0; i < report.candidate_count; i++)
        cr_expect(strstr(report.candidates[i].reason, "k spans"), "%s", report.candidates[i].reason);
    gpu_close(context);
}

struct attempt {
    const vkattn_plan *plan;
    vkattn_buffers buffers;
};

static vkattn_status record_too_far(void *user, VkCommandBuffer cmd)
{
    const struct attempt *a = user;
    gpu_expect(vkattn_record(a->plan, cmd, &a->buffers, NULL), VKATTN_UNSUPPORTED, "k needs a binding of 134217732");
    return VKATTN_OK;
}

/* A tensor that just fits, from an offset that no binding may have: the binding begins before it. */
Test(limits, a_binding_counts_from_its_aligned_offset)
{
    vkattn_context *context = gpu_open(0);
    const uint32_t keys = keys_of_range(context);
    if (!context->enabled.push_descriptor || vkattn_device_caps(context->vkattn)->offset_alignment < 8)
        cr_skip_test("the device has no push descriptors, or binds them at any word");
    if (vkattn_device_caps(context->vkattn)->max_loop_rounds != 0)
        cr_skip_test("the driver ends long loops early: the plan is refused");
    const vkattn_problem p = long_problem(keys);
    vkattn_plan *plan;
    vkattn_mapped k;
    gpu_ok(vkattn_plan_create(context->vkattn, &p, &(vkattn_options){.access = VKATTN_ACCESS_DESCRIPTOR}, &plan));
    struct gpu_case c = gpu_case_make(&p);
    struct gpu_buffers b = gpu_buffers_make(context, &c, plan);
    gpu_ok(vkattn_mapped_create(context, c.size[TENSOR_K] + 4, &k));
    struct attempt a = {.plan = plan, .buffers = b.buffers};
    a.buffers.k = (vkattn_buffer){.buffer = k.buffer, .offset = 4, .size = c.size[TENSOR_K]};
    gpu_ok(vkattn_run(context, record_too_far, &a, NULL));
    vkattn_mapped_destroy(context, &k);
    gpu_buffers_free(context, &b);
    gpu_case_free(&c);
    vkattn_plan_destroy(plan);
    gpu_close(context);
}

/* ---- More than 4 GiB ------------------------------------------------------------------------------------------- */

/* Between the batch members of a tensor. No driver here allocates as much at once, and nobody has the memory: only the
 * members themselves are there, in imported pages that lie as far apart. */
static const size_t far_apart = (size_t)20 << 30; /* bytes: strides and offsets pass 2^32 elements, too */
enum { MEMBERS = 3, NEAR_KEYS = 32, CHUNK = 65536 };

struct far_tensor {
    char *space;
    struct pages chunks[MEMBERS];
};

static struct far_tensor make_far(const struct pages_device *d, const void *dense)
{
    struct far_tensor t = {.space = pages_reserve((MEMBERS - 1) * far_apart + CHUNK)};
    for (size_t b = 0; b < MEMBERS; b++) {
        char *chunk = t.space + b * far_apart;
        cr_assert(mprotect(chunk, CHUNK, PROT_READ | PROT_WRITE) == 0);
        memcpy(chunk, (const char *)dense + b * NEAR_KEYS * ROW_SIZE, NEAR_KEYS * ROW_SIZE);
        t.chunks[b] = pages_import(d, chunk, CHUNK);
    }
    if (t.chunks[MEMBERS - 1].address - t.chunks[0].address != (MEMBERS - 1) * far_apart)
        cr_skip_test("addresses of this device are not those of its host");
    return t;
}

static void free_far(const struct pages_device *d, struct far_tensor *t)
{
    for (int b = 0; b < MEMBERS; b++)
        pages_free(d, &t->chunks[b]);
    munmap(t->space, (MEMBERS - 1) * far_apart + CHUNK);
}

static vkattn_buffer far_buffer(const struct far_tensor *t)
{
    return (vkattn_buffer){.buffer = t->chunks[0].buffer, .size = (MEMBERS - 1) * far_apart + NEAR_KEYS * ROW_SIZE};
}

static void put_near(struct pages *p, size_t *used, vkattn_buffer *buffer, const void *data, size_t size)
{
    *buffer = (vkattn_buffer){.buffer = p->buffer, .offset = *used, .size = size};
    if (data)
        memcpy(p->data + *used, data, size);
    *used += (size + 255) / 256 * 256;
    cr_assert(*used <= p->size);
}

static void run_far(const struct pages_device *d, struct gpu_case *c, const vkattn_options *options,
                    const struct far_tensor *k, const struct far_tensor *v, struct pages *near)
{
    vkattn_plan *plan = gpu_plan_if_can(d->vkattn, &c->problem, options);
    if (plan == NULL)
        return;
    vkattn_buffers b = {.k = far_buffer(k), .v = far_buffer(v)};
    size_t used = 0;
    put_near(near, &used, &b.q, c->data[TENSOR_Q], c->size[TENSOR_Q]);
    put_near(near, &used, &b.o, c->data[TENSOR_O], c->size[TENSOR_O]);
    put_near(near, &used, &b.workspace, NULL, (size_t)vkattn_plan_workspace(plan).size);
    pages_run(d, plan, &b, NULL, 1);
    memcpy(c->data[TENSOR_O], near->data + b.o.offset, c->size[TENSOR_O]);
    gpu_case_expect(c, NULL, options->kernel);
    vkattn_plan_destroy(plan);
}

Test(limits, a_tensor_may_span_more_than_4_gib)
{
    vkattn_context *context = gpu_open(0);
    struct pages_device d = pages_open(context);
    const vkattn_problem dense = {.batch = MEMBERS, .len_q = 4, .len_kv = NEAR_KEYS, .dim_qk = DIM};
    struct gpu_case c = gpu_case_make(&dense);
    void *const dense_k = c.data[TENSOR_K], *const dense_v = c.data[TENSOR_V];
    struct far_tensor k = make_far(&d, dense_k), v = make_far(&d, dense_v);
    char *space = pages_reserve(CHUNK);
    cr_assert(mprotect(space, CHUNK, PROT_READ | PROT_WRITE) == 0);
    struct pages near = pages_import(&d, space, CHUNK);
    c.problem.k = (vkattn_layout){.order = VKATTN_STRIDED, .batch = far_apart / 4, .row = DIM};
    c.problem.v = c.problem.k;
    c.data[TENSOR_K] = k.space; /* the reference reads the same pages */
    c.data[TENSOR_V] = v.space;
    for (uint32_t i = 0; vkattn_kernel_name(i); i++)
        run_far(&d, &c, &(vkattn_options){.kernel = vkattn_kernel_name(i), .access = VKATTN_ACCESS_ADDRESS}, &k, &v,
                &near);
    c.data[TENSOR_K] = dense_k;
    c.data[TENSOR_V] = dense_v;
    gpu_case_free(&c);
    pages_free(&d, &near);
    munmap(space, CHUNK);
    free_far(&d, &k);
    free_far(&d, &v);
    pages_close(&d);
    gpu_close(context);
}

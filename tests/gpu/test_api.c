/* The API on a device: right results through each way in, and each misuse with its own status and sentence. */
#include "gpu.h"

#include "plan.h"
#include "spy.h"
#include "tuning.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array)     (sizeof(array) / sizeof *(array))
#define STRIDES(b, h, r) ((vkattn_layout){.order = VKATTN_STRIDED, .batch = (b), .head = (h), .row = (r)})

/* Tensors that callers give; the library's own follow. */
enum { GIVEN = TENSOR_KV_SEGMENTS + 1 };

TestSuite(api, .timeout = 300);

static const vkattn_problem small = {
    .batch = 2, .heads = 4, .kv_heads = 2, .len_q = 5, .len_kv = 9, .dim_qk = 8, .flags = VKATTN_WRITE_LSE};

/* Every tensor takes part. */
static const vkattn_problem everything = {.batch = 2,
                                          .heads = 2,
                                          .len_q = 3,
                                          .len_kv = 5,
                                          .dim_qk = 4,
                                          .q_type = VKATTN_F16,
                                          .kv_type = VKATTN_F16,
                                          .o_type = VKATTN_F16,
                                          .bias_type = VKATTN_F16,
                                          .flags = VKATTN_PREFIX | VKATTN_KV_LENGTHS | VKATTN_Q_LENGTHS |
                                                   VKATTN_SEGMENTS | VKATTN_BIAS | VKATTN_ALIBI | VKATTN_SINKS |
                                                   VKATTN_WRITE_LSE | VKATTN_WRITE_WEIGHTS,
                                          .align = VKATTN_TOP_LEFT,
                                          .mask_kind = VKATTN_MASK_BYTES,
                                          .mask_true = VKATTN_TRUE_ATTENDS};

/* For tests to which kernels are all the same: this one compiles in no time, also on SwiftShader. */
static const vkattn_options quick = {.kernel = "fwd_rows"};

static vkattn_device *create_device(const vkattn_device_info *info)
{
    vkattn_device *device;
    gpu_ok(vkattn_device_create(info, &device));
    return device;
}

/* The device of `context` once more, watched by the spy. */
static vkattn_device *create_watched(const vkattn_context *context)
{
    vkattn_device_info info = gpu_info(context);
    info.get_instance_proc_addr = spy_get_instance_proc_addr;
    return create_device(&info);
}

static vkattn_plan *create_plan(vkattn_device *device, const vkattn_problem *problem, const vkattn_options *options)
{
    vkattn_plan *plan;
    gpu_ok(vkattn_plan_create(device, problem, options, &plan));
    return plan;
}

/* ---- Host memory ----------------------------------------------------------------------------------------------- */

static void expect_attended(vkattn_device *device, const vkattn_problem *problem, const vkattn_options *options,
                            const vkattn_lengths *lengths, const char *what)
{
    struct gpu_case c = gpu_case_make(problem);
    const vkattn_tensors tensors = gpu_case_tensors(&c);
    gpu_ok(vkattn_attend(device, problem, options, &tensors, lengths));
    gpu_case_expect(&c, lengths, what);
    gpu_case_free(&c);
}

Test(api, attend_on_host_memory)
{
    vkattn_context *context = gpu_open(0);
    vkattn_problem p = small;
    expect_attended(context->vkattn, &p, NULL, NULL, "small");
    p.flags |= VKATTN_WRITE_WEIGHTS;
    expect_attended(context->vkattn, &p, NULL, NULL, "with weights");
    p.flags = VKATTN_WRITE_WEIGHTS;
    expect_attended(context->vkattn, &p, NULL, NULL, "weights without LSE");
    expect_attended(context->vkattn, &p, NULL, &(vkattn_lengths){3, 4}, "less than the capacity");
    expect_attended(context->vkattn, &p, NULL, &(vkattn_lengths){5, 0}, "no keys");
    expect_attended(context->vkattn, &p, NULL, &(vkattn_lengths){0, 9}, "no queries");
    gpu_close(context);
}

Test(api, attend_writes_nothing_between_rows)
{
    vkattn_context *context = gpu_open(0);
    vkattn_problem p = small;
    p.flags |= VKATTN_WRITE_WEIGHTS;
    p.dim_v = 7;
    p.o_type = VKATTN_F16; /* rows of odd width share words with what is between them */
    p.o = STRIDES(400, 70, 9);
    p.lse = STRIDES(1, 2, 16);
    p.weights = STRIDES(500, 100, 11);
    expect_attended(context->vkattn, &p, NULL, NULL, "gaps");
    expect_attended(context->vkattn, &p, NULL, &(vkattn_lengths){2, 3}, "gaps, less than the capacity");
    p.o = STRIDES(140, 7, 28); /* no gaps, rows outside heads */
    expect_attended(context->vkattn, &p, NULL, NULL, "rows outside heads");
    gpu_close(context);
}

_Static_assert(sizeof(vkattn_tensors) == GIVEN * sizeof(void *), "one pointer for each tensor, in their order");

static void set_pointer(vkattn_tensors *tensors, int id, const void *pointer)
{
    memcpy((char *)tensors + (size_t)id * sizeof pointer, &pointer, sizeof pointer);
}

static void expect_part(vkattn_status got, vkattn_status expected, const char *prefix, int id, const char *suffix)
{
    char part[80];
    snprintf(part, sizeof part, "%s%s%s", prefix, vkattn_tensor_names[id], suffix);
    gpu_expect(got, expected, part);
}

Test(api, attend_names_the_wrong_pointer)
{
    vkattn_context *context = gpu_open(0);
    static _Alignas(16) unsigned char memory[4096];
    for (int id = 0; id < GIVEN; id++) {
        vkattn_tensors tensors = {0};
        for (int other = 0; other < GIVEN; other++)
            set_pointer(&tensors, other, memory);
        set_pointer(&tensors, id, NULL);
        expect_part(vkattn_attend(context->vkattn, &everything, &quick, &tensors, NULL), VKATTN_INVALID, "tensors.", id,
                    " is NULL");
        if (id == TENSOR_MASK)
            continue; /* of bytes */
        set_pointer(&tensors, id, memory + 1);
        expect_part(vkattn_attend(context->vkattn, &everything, &quick, &tensors, NULL), VKATTN_INVALID, "tensors.", id,
                    " is 0x");
    }
    for (size_t i = 0; i < sizeof memory; i++)
        cr_assert(memory[i] == 0, "a call that failed wrote");
    gpu_close(context);
}

Test(api, attend_refuses_misuse)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device *device = context->vkattn;
    struct gpu_case c = gpu_case_make(&small);
    const vkattn_tensors t = gpu_case_tensors(&c);
    vkattn_problem bad = small;
    bad.dim_qk = 0;
    gpu_expect(vkattn_attend(NULL, &small, &quick, &t, NULL), VKATTN_INVALID, "device is NULL");
    gpu_expect(vkattn_attend(device, NULL, NULL, &t, NULL), VKATTN_INVALID, "problem is NULL");
    gpu_expect(vkattn_attend(device, &small, &quick, NULL, NULL), VKATTN_INVALID, "tensors is NULL");
    gpu_expect(vkattn_attend(device, &bad, NULL, &t, NULL), VKATTN_INVALID, "dim_qk is 0");
    gpu_expect(vkattn_attend(device, &small, &(vkattn_options){.kernel = "fwd_magic"}, &t, NULL), VKATTN_INVALID,
               "fwd_magic");
    gpu_expect(vkattn_attend(device, &small, &quick, &t, &(vkattn_lengths){6, 9}), VKATTN_INVALID,
               "lengths.len_q is 6");
    gpu_expect(vkattn_attend(device, &small, &quick, &t, &(vkattn_lengths){5, 10}), VKATTN_INVALID,
               "lengths.len_kv is 10");
    cr_expect(gpu_case_untouched(&c));
    gpu_case_free(&c);
    gpu_close(context);
}

Test(api, attend_needs_a_queue)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_info info = gpu_info(context);
    info.queue = VK_NULL_HANDLE;
    vkattn_device *device = create_device(&info);
    struct gpu_case c = gpu_case_make(&small);
    const vkattn_tensors tensors = gpu_case_tensors(&c);
    gpu_expect(vkattn_attend(device, &small, NULL, &tensors, NULL), VKATTN_INVALID, "without a queue");
    cr_expect(gpu_case_untouched(&c));
    gpu_case_free(&c);
    vkattn_device_destroy(device);
    gpu_close(context);
}

static void *attend_often(void *device)
{
    for (uint32_t i = 0; i < 10; i++) {
        vkattn_problem p = small;
        p.len_kv += i;
        expect_attended(device, &p, &quick, NULL, "from a thread");
    }
    return NULL;
}

Test(api, attend_from_threads)
{
    vkattn_context *context = gpu_open(0);
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT(threads); i++)
        cr_assert(pthread_create(&threads[i], NULL, attend_often, context->vkattn) == 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        cr_assert(pthread_join(threads[i], NULL) == 0);
    gpu_close(context);
}

/* ---- Plans ----------------------------------------------------------------------------------------------------- */

Test(api, plan_refuses_misuse)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device *device = context->vkattn;
    vkattn_plan *const marker = (vkattn_plan *)&context, *plan = marker;
    gpu_expect(vkattn_plan_create(device, &small, NULL, NULL), VKATTN_INVALID, "plan is NULL");
    gpu_expect(vkattn_plan_create(NULL, &small, NULL, &plan), VKATTN_INVALID, "device is NULL");
    cr_expect(plan == NULL, "a failure leaves NULL");
    plan = marker;
    gpu_expect(vkattn_plan_create(device, NULL, NULL, &plan), VKATTN_INVALID, "problem is NULL");
    cr_expect(plan == NULL);
    gpu_expect(vkattn_plan_create(device, &small, &(vkattn_options){.kernel = "fwd_magic"}, &plan), VKATTN_INVALID,
               "fwd_magic");
    gpu_expect(vkattn_plan_create(device, &small, &(vkattn_options){.kernel = "fwd_rows", .tile = 100}, &plan),
               VKATTN_INVALID, "options.tile is 100");
    struct {
        vkattn_options known;
        uint64_t tail;
    } newer = {.tail = 1};
    gpu_expect(vkattn_plan_create_sized(device, &small, sizeof small, &newer.known, sizeof newer, &plan),
               VKATTN_INVALID, "options is of a newer version");
    cr_expect(vkattn_device_pipeline_count(device) == 0, "nothing was built");
    vkattn_plan_destroy(NULL);
    gpu_close(context);
}

Test(api, explain_agrees_with_the_plan)
{
    vkattn_context *context = gpu_open(0);
    vkattn_report report;
    vkattn_problem p = small;
    p.flags |= VKATTN_WRITE_WEIGHTS;
    gpu_ok(vkattn_explain(context->vkattn, &p, NULL, &report));
    cr_expect(vkattn_device_pipeline_count(context->vkattn) == 0, "explaining compiles nothing");
    vkattn_plan *plan = create_plan(context->vkattn, &p, NULL);
    cr_expect_str_eq(report.candidates[report.chosen].kernel, vkattn_plan_kernel(plan));
    cr_expect(report.workspace_size == vkattn_plan_workspace(plan).size && report.step_count >= 2);
    vkattn_plan_destroy(plan);
    gpu_close(context);
}

static void expect_zeroed(const vkattn_report *report)
{
    static const vkattn_report zero;
    cr_expect(memcmp(report, &zero, sizeof zero) == 0, "*report is not zeroed: chosen is %d", report->chosen);
}

Test(api, explain_refuses_misuse)
{
    vkattn_context *context = gpu_open(0);
    const vkattn_device *device = context->vkattn;
    vkattn_report report;
    vkattn_problem bad = small;
    bad.len_q = UINT32_MAX;
    gpu_expect(vkattn_explain(device, &small, NULL, NULL), VKATTN_INVALID, "report is NULL");
    memset(&report, 1, sizeof report);
    gpu_expect(vkattn_explain(NULL, &small, NULL, &report), VKATTN_INVALID, "device is NULL");
    expect_zeroed(&report);
    memset(&report, 1, sizeof report);
    gpu_expect(vkattn_explain(device, NULL, NULL, &report), VKATTN_INVALID, "problem is NULL");
    expect_zeroed(&report);
    memset(&report, 1, sizeof report);
    gpu_expect(vkattn_explain(device, &bad, NULL, &report), VKATTN_INVALID, "len_q is 4294967295");
    expect_zeroed(&report);
    memset(&report, 1, sizeof report);
    gpu_expect(vkattn_explain(device, &small, &(vkattn_options){.kernel = "x"}, &report), VKATTN_INVALID, "\"x\"");
    expect_zeroed(&report);
    gpu_close(context);
}

Test(api, explain_holds_the_reasons)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_info info = gpu_info(context);
    info.limits = VKATTN_LIMIT_NO_DESCRIPTORS;
    if (!context->enabled.buffer_device_address)
        cr_skip_test("the device has no buffer device addresses");
    vkattn_device *device = create_device(&info);
    vkattn_report report;
    const vkattn_options options = {.access = VKATTN_ACCESS_DESCRIPTOR};
    gpu_expect(vkattn_explain(device, &small, &options, &report), VKATTN_UNSUPPORTED, "push descriptors");
    cr_expect(report.chosen == -1 && report.candidate_count > 0);
    for (uint32_t i = 0; i < report.candidate_count; i++)
        cr_expect(report.candidates[i].reason[0] != '\0');
    vkattn_device_destroy(device);
    gpu_close(context);
}

struct planner {
    vkattn_device *device;
    pthread_barrier_t *start;
    vkattn_plan *plan;
};

static void *plan_at_once(void *user)
{
    struct planner *planner = user;
    pthread_barrier_wait(planner->start);
    planner->plan = create_plan(planner->device, &small, &quick);
    return NULL;
}

Test(api, pipelines_are_built_once)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device *device = create_watched(context);
    const int before = spy.live;
    pthread_barrier_t start;
    pthread_t threads[8];
    struct planner planners[COUNT(threads)];
    cr_assert(pthread_barrier_init(&start, NULL, COUNT(threads)) == 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        planners[i] = (struct planner){.device = device, .start = &start};
        cr_assert(pthread_create(&threads[i], NULL, plan_at_once, &planners[i]) == 0);
    }
    for (size_t i = 0; i < COUNT(threads); i++)
        cr_assert(pthread_join(threads[i], NULL) == 0);
    const uint32_t count = vkattn_device_pipeline_count(device);
    cr_expect(count > 0 && spy.live - before == (int)count, "%u pipelines are counted, %d exist", count,
              (int)spy.live - before);
    vkattn_plan *again = create_plan(device, &small, &quick);
    cr_expect(vkattn_device_pipeline_count(device) == count, "an equal plan built a pipeline");
    vkattn_plan_destroy(again);
    for (size_t i = 0; i < COUNT(threads); i++)
        vkattn_plan_destroy(planners[i].plan);
    cr_expect(vkattn_device_pipeline_count(device) == count, "pipelines stay with the device");
    vkattn_device_destroy(device);
    cr_expect(spy.live == 0);
    pthread_barrier_destroy(&start);
    gpu_close(context);
}

/* ---- Recording: misuse ----------------------------------------------------------------------------------------- */

_Static_assert(sizeof(vkattn_buffers) == (GIVEN + 1) * sizeof(vkattn_buffer),
               "one buffer for each tensor, in their order, then the workspace");

enum { SLOT = 4096, WORKSPACE = GIVEN };

/* One buffer with a slot for each tensor of `everything` and for the workspace. */
struct slots {
    vkattn_mapped memory;
    vkattn_buffer entries[GIVEN + 1];
};

static struct slots make_slots(vkattn_context *context, const vkattn_plan *plan)
{
    struct slots s = {0};
    struct problem p;
    gpu_ok(vkattn_problem_canonical(&everything, sizeof everything, &p));
    const vkattn_lengths whole = {p.len_q, p.len_kv};
    gpu_ok(vkattn_mapped_create(context, SLOT * (GIVEN + 2), &s.memory));
    memset(s.memory.data, 0, s.memory.size);
    for (int id = 0; id <= GIVEN; id++) {
        uint64_t bits = 8 * vkattn_plan_workspace(plan).size;
        if (id < GIVEN)
            cr_assert(vkattn_tensor_extent(&p, (enum tensor_id)id, &whole, &bits));
        s.entries[id] = (vkattn_buffer){.buffer = s.memory.buffer, .offset = (VkDeviceSize)id * SLOT, .size = bits / 8};
    }
    return s;
}

static vkattn_status record_slots(const vkattn_plan *plan, VkCommandBuffer cmd, const struct slots *s)
{
    vkattn_buffers buffers;
    memcpy(&buffers, s->entries, sizeof buffers);
    return vkattn_record(plan, cmd, &buffers, NULL);
}

static void expect_slot_misuse(const vkattn_plan *plan, VkCommandBuffer cmd, struct slots *s, int id)
{
    const vkattn_buffer right = s->entries[id];
    s->entries[id].buffer = VK_NULL_HANDLE;
    expect_part(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.", id, ".buffer is VK_NULL_HANDLE");
    s->entries[id] = (vkattn_buffer){0};
    expect_part(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.", id, ".buffer is VK_NULL_HANDLE");
    s->entries[id] = right, s->entries[id].size--;
    expect_part(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.", id, ".size is");
    s->entries[id] = right, s->entries[id].offset++;
    if (id != TENSOR_MASK)
        expect_part(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.", id, ".offset is");
    s->entries[id] = right;
}

static void expect_workspace_misuse(const vkattn_plan *plan, VkCommandBuffer cmd, struct slots *s)
{
    const vkattn_buffer right = s->entries[WORKSPACE];
    const vkattn_workspace needs = vkattn_plan_workspace(plan);
    cr_expect(needs.size > 0 && needs.alignment > 0 && (needs.usage & VK_BUFFER_USAGE_TRANSFER_DST_BIT));
    s->entries[WORKSPACE].buffer = VK_NULL_HANDLE;
    gpu_expect(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.workspace.buffer is VK_NULL_HANDLE");
    s->entries[WORKSPACE] = right, s->entries[WORKSPACE].size--;
    gpu_expect(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.workspace.size is");
    s->entries[WORKSPACE] = right, s->entries[WORKSPACE].offset += needs.alignment / 2;
    gpu_expect(record_slots(plan, cmd, s), VKATTN_INVALID, "buffers.workspace.offset is");
    s->entries[WORKSPACE] = right;
}

static void expect_call_misuse(const vkattn_plan *plan, VkCommandBuffer cmd, const struct slots *s)
{
    struct {
        vkattn_buffers known;
        uint64_t tail;
    } newer = {.tail = 1};
    memcpy(&newer.known, s->entries, sizeof newer.known);
    const vkattn_buffers *b = &newer.known;
    gpu_expect(vkattn_record(NULL, cmd, b, NULL), VKATTN_INVALID, "plan is NULL");
    gpu_expect(vkattn_record(plan, VK_NULL_HANDLE, b, NULL), VKATTN_INVALID, "cmd is VK_NULL_HANDLE");
    gpu_expect(vkattn_record(plan, cmd, NULL, NULL), VKATTN_INVALID, "buffers is NULL");
    gpu_expect(vkattn_record(plan, cmd, b, &(vkattn_lengths){4, 5}), VKATTN_INVALID, "lengths.len_q is 4");
    gpu_expect(vkattn_record(plan, cmd, b, &(vkattn_lengths){3, 6}), VKATTN_INVALID, "lengths.len_kv is 6");
    gpu_expect(vkattn_record_sized(plan, cmd, b, sizeof newer, NULL), VKATTN_INVALID, "buffers is of a newer version");
}

struct misuse {
    const vkattn_plan *plan;
    struct slots slots;
};

static vkattn_status record_misuse(void *user, VkCommandBuffer cmd)
{
    struct misuse *m = user;
    for (int id = 0; id < GIVEN; id++)
        expect_slot_misuse(m->plan, cmd, &m->slots, id);
    expect_workspace_misuse(m->plan, cmd, &m->slots);
    expect_call_misuse(m->plan, cmd, &m->slots);
    cr_expect(spy.commands == 0, "%d commands were appended by calls that failed", (int)spy.commands);
    return VKATTN_OK;
}

static vkattn_status record_rightly(void *user, VkCommandBuffer cmd)
{
    const struct misuse *m = user;
    return record_slots(m->plan, cmd, &m->slots);
}

static const unsigned char *slot_bytes(const struct slots *s, int id)
{
    return (const unsigned char *)s->memory.data + (size_t)id * SLOT;
}

static void expect_misuse_refused(vkattn_context *context, vkattn_access access)
{
    spy_reset();
    vkattn_device *device = create_watched(context);
    const vkattn_options options = {.kernel = quick.kernel, .access = access};
    vkattn_plan *plan = create_plan(device, &everything, &options);
    struct misuse m = {.plan = plan, .slots = make_slots(context, plan)};
    for (int id = TENSOR_O; id <= TENSOR_WEIGHTS; id++)
        memset((void *)(uintptr_t)slot_bytes(&m.slots, id), gpu_poison, SLOT);
    spy.commands = 0;
    gpu_ok(vkattn_run(context, record_misuse, &m, NULL));
    for (int id = TENSOR_O; id <= TENSOR_WEIGHTS; id++)
        for (size_t i = 0; i < SLOT; i++)
            cr_assert(slot_bytes(&m.slots, id)[i] == gpu_poison, "%s was written", vkattn_tensor_names[id]);
    gpu_ok(vkattn_run(context, record_rightly, &m, NULL));
    cr_expect(spy.commands > 0 && slot_bytes(&m.slots, TENSOR_O)[0] != gpu_poison, "the right call does nothing");
    vkattn_mapped_destroy(context, &m.slots.memory);
    vkattn_plan_destroy(plan);
    vkattn_device_destroy(device);
    cr_expect(spy.live == 0);
}

Test(api, record_refuses_misuse)
{
    vkattn_context *context = gpu_open(0);
    if (context->enabled.buffer_device_address)
        expect_misuse_refused(context, VKATTN_ACCESS_ADDRESS);
    if (context->enabled.push_descriptor)
        expect_misuse_refused(context, VKATTN_ACCESS_DESCRIPTOR);
    gpu_close(context);
}

/* ---- Recording: use -------------------------------------------------------------------------------------------- */

static void expect_recorded(vkattn_context *context, const vkattn_plan *plan, struct gpu_case *c,
                            const struct gpu_buffers *b, const vkattn_lengths *lengths, const char *what)
{
    gpu_case_poison(c);
    gpu_buffers_put(b, c);
    gpu_ok(gpu_run(context, plan, &b->buffers, lengths));
    gpu_buffers_get(b, c);
    gpu_case_expect(c, lengths, what);
}

/* Each tensor one element into its buffer: no row of a 16-bit type starts where a word does. */
static void shift_buffers(vkattn_context *context, const struct gpu_case *c, struct gpu_buffers *b)
{
    vkattn_buffer *const targets[GPU_TENSORS] = {&b->buffers.q, &b->buffers.k,   &b->buffers.v,
                                                 &b->buffers.o, &b->buffers.lse, &b->buffers.weights};
    for (int id = 0; id < GPU_TENSORS; id++) {
        if (!c->data[id])
            continue;
        const size_t shift = id <= TENSOR_O ? 2 : 4;
        vkattn_mapped_destroy(context, &b->tensors[id]);
        gpu_ok(vkattn_mapped_create(context, (c->size[id] + 4 + 3) / 4 * 4, &b->tensors[id]));
        memset(b->tensors[id].data, gpu_poison, b->tensors[id].size);
        memcpy((char *)b->tensors[id].data + shift, c->data[id], c->size[id]);
        *targets[id] = (vkattn_buffer){.buffer = b->tensors[id].buffer, .offset = shift, .size = c->size[id]};
    }
}

static void get_shifted(const struct gpu_buffers *b, struct gpu_case *c, const char *what)
{
    for (int id = TENSOR_O; id < GPU_TENSORS; id++) {
        if (!c->data[id])
            continue;
        const unsigned char *bytes = b->tensors[id].data;
        const size_t shift = id == TENSOR_O ? 2 : 4;
        for (size_t i = 0; i < b->tensors[id].size; i++)
            cr_assert(bytes[i] == gpu_poison || (i >= shift && i < shift + c->size[id]), "%s: byte %zu beside %s", what,
                      i, vkattn_tensor_names[id]);
        memcpy(c->data[id], bytes + shift, c->size[id]);
    }
}

static void expect_shifted(vkattn_context *context, const vkattn_problem *problem, const vkattn_options *options)
{
    char what[80];
    vkattn_plan *plan = gpu_plan_if_can(context->vkattn, problem, options);
    if (plan == NULL)
        return;
    snprintf(what, sizeof what, "%s, access %d, d = %u", options->kernel, (int)options->access, problem->dim_qk);
    struct gpu_case c = gpu_case_make(problem);
    struct gpu_buffers b = gpu_buffers_make(context, &c, plan);
    vkattn_report report;
    gpu_ok(vkattn_explain(context->vkattn, problem, options, &report));
    c.p_type = report.candidates[report.chosen].p_type;
    shift_buffers(context, &c, &b);
    gpu_ok(gpu_run(context, plan, &b.buffers, NULL));
    get_shifted(&b, &c, what);
    gpu_case_expect(&c, NULL, what);
    gpu_buffers_free(context, &b);
    gpu_case_free(&c);
    vkattn_plan_destroy(plan);
}

/* "A tensor is aligned to its element and no more", also where strides alone would promise more. */
Test(api, tensors_may_start_at_any_element)
{
    vkattn_context *context = gpu_open(0);
    const uint32_t dims[] = {8, 7};
    for (uint32_t k = 0; vkattn_kernel_name(k); k++)
        for (size_t i = 0; i < COUNT(dims); i++)
            for (int access = VKATTN_ACCESS_ADDRESS; access <= VKATTN_ACCESS_DESCRIPTOR; access++) {
                vkattn_problem p = small;
                p.q_type = p.kv_type = p.o_type = VKATTN_F16;
                p.dim_qk = dims[i];
                p.flags |= VKATTN_WRITE_WEIGHTS;
                const vkattn_options options = {.kernel = vkattn_kernel_name(k), .access = (vkattn_access)access};
                expect_shifted(context, &p, &options);
            }
    gpu_close(context);
}

Test(api, addresses_may_be_given)
{
    vkattn_context *context = gpu_open(0);
    if (!context->enabled.buffer_device_address)
        cr_skip_test("the device has no buffer device addresses");
    const vkattn_options options = {.kernel = quick.kernel, .access = VKATTN_ACCESS_ADDRESS};
    vkattn_plan *plan = create_plan(context->vkattn, &small, &options);
    struct gpu_case c = gpu_case_make(&small);
    struct gpu_buffers b = gpu_buffers_make(context, &c, plan);
    vkattn_buffer *const given[] = {&b.buffers.q, &b.buffers.k, &b.buffers.v, &b.buffers.o, &b.buffers.lse};
    for (size_t i = 0; i < COUNT(given); i++) {
        const VkBufferDeviceAddressInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                                .buffer = given[i]->buffer};
        given[i]->address = vkGetBufferDeviceAddress(context->device, &info);
        given[i]->buffer = VK_NULL_HANDLE; /* not needed, then */
    }
    expect_recorded(context, plan, &c, &b, NULL, "addresses");
    gpu_buffers_free(context, &b);
    gpu_case_free(&c);
    vkattn_plan_destroy(plan);
    gpu_close(context);
}

struct pair {
    const vkattn_plan *plan;
    const struct gpu_buffers *first, *second;
    vkattn_lengths lengths;
};

static vkattn_status record_pair(void *user, VkCommandBuffer cmd)
{
    const struct pair *pair = user;
    vkattn_buffers second = pair->second->buffers;
    second.workspace = pair->first->buffers.workspace;
    gpu_ok(vkattn_record(pair->plan, cmd, &pair->first->buffers, NULL));
    return vkattn_record(pair->plan, cmd, &second, &pair->lengths);
}

static void expect_shared_workspace(vkattn_context *context, vkattn_access access)
{
    vkattn_problem p = small;
    p.flags = VKATTN_WRITE_WEIGHTS; /* LSE lies in the workspace */
    vkattn_plan *plan = create_plan(context->vkattn, &p, &(vkattn_options){.access = access});
    struct gpu_case first = gpu_case_make(&p), second = gpu_case_make(&p);
    struct gpu_buffers a = gpu_buffers_make(context, &first, plan), b = gpu_buffers_make(context, &second, plan);
    struct pair pair = {plan, &a, &b, {4, 7}};
    gpu_ok(vkattn_run(context, record_pair, &pair, NULL));
    gpu_buffers_get(&a, &first);
    gpu_buffers_get(&b, &second);
    gpu_case_expect(&first, NULL, "the first recording");
    gpu_case_expect(&second, &pair.lengths, "the second recording");
    gpu_buffers_free(context, &a);
    gpu_buffers_free(context, &b);
    gpu_case_free(&first);
    gpu_case_free(&second);
    vkattn_plan_destroy(plan);
}

Test(api, two_recordings_may_share_a_workspace)
{
    vkattn_context *context = gpu_open(0);
    if (context->enabled.buffer_device_address)
        expect_shared_workspace(context, VKATTN_ACCESS_ADDRESS);
    if (context->enabled.push_descriptor)
        expect_shared_workspace(context, VKATTN_ACCESS_DESCRIPTOR);
    gpu_close(context);
}

Test(api, work_is_cut_into_dispatches_with_equal_bits)
{
    vkattn_context *context = gpu_open(0);
    vkattn_problem p = small;
    p.len_q = 300; /* several row blocks in any kernel */
    spy_reset();
    vkattn_device *device = create_watched(context);
    struct gpu_case whole = gpu_case_make(&p), parts = gpu_case_make(&p);
    vkattn_tensors tensors = gpu_case_tensors(&whole);
    gpu_ok(vkattn_attend(device, &p, NULL, &tensors, NULL));
    const int dispatches = spy.dispatches;
    tensors.o = parts.data[TENSOR_O];
    tensors.lse = parts.data[TENSOR_LSE];
    gpu_ok(vkattn_attend(device, &p, &(vkattn_options){.max_work = 1}, &tensors, NULL));
    cr_expect(spy.dispatches - dispatches > 2 * dispatches, "%d dispatches", (int)spy.dispatches - dispatches);
    cr_expect(memcmp(whole.data[TENSOR_O], parts.data[TENSOR_O], whole.size[TENSOR_O]) == 0);
    cr_expect(memcmp(whole.data[TENSOR_LSE], parts.data[TENSOR_LSE], whole.size[TENSOR_LSE]) == 0);
    gpu_case_free(&whole);
    gpu_case_free(&parts);
    vkattn_device_destroy(device);
    gpu_close(context);
}

struct decode {
    vkattn_plan *plan;
    struct gpu_case c;
    struct gpu_buffers b;
    vkattn_lengths lengths;
};

static vkattn_status record_only(void *user, VkCommandBuffer cmd)
{
    const struct decode *d = user;
    gpu_ok(vkattn_record(d->plan, cmd, &d->b.buffers, &d->lengths));
    return VKATTN_FAILED; /* vkattn_run then submits nothing */
}

static void decode_step(vkattn_context *context, struct decode *d, bool look, bool submit)
{
    char what[40];
    snprintf(what, sizeof what, "step %u", d->lengths.len_kv);
    if (look)
        expect_recorded(context, d->plan, &d->c, &d->b, &d->lengths, what);
    else if (submit)
        gpu_ok(gpu_run(context, d->plan, &d->b.buffers, &d->lengths));
    else
        cr_assert(vkattn_run(context, record_only, d, NULL) == VKATTN_FAILED);
}

/* 1,000 tokens through one plan: nothing is built, allocated or submitted by the library after the first. */
Test(api, a_decode_loop_builds_nothing)
{
    vkattn_context *context = gpu_open(0);
    const vkattn_problem p = {
        .heads = 2, .kv_heads = 1, .len_q = 1, .len_kv = 1000, .dim_qk = 4, .kv_type = VKATTN_F16};
    const uint32_t looked_at[] = {1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 500, 999, 1000};
    /* Where it takes long, most steps are recorded and not run. */
    const uint32_t submitted = gpu_is_slow(context) ? 25 : 1;
    spy_reset();
    vkattn_device *device = create_watched(context);
    struct decode d = {.plan = create_plan(device, &p, NULL), .c = gpu_case_make(&p)};
    d.b = gpu_buffers_make(context, &d.c, d.plan);
    const uint32_t pipelines = vkattn_device_pipeline_count(device);
    const int fallible = spy.fallible;
    size_t next = 0;
    for (uint32_t step = 1; step <= p.len_kv; step++) {
        const bool look = step == looked_at[next];
        d.lengths = (vkattn_lengths){1, step};
        decode_step(context, &d, look, step % submitted == 0);
        next += look;
        cr_assert(vkattn_device_pipeline_count(device) == pipelines && spy.pipelines == (int)pipelines,
                  "step %u built a pipeline", step);
        cr_assert(spy.fallible == fallible, "step %u allocated, created or submitted", step);
    }
    cr_expect(next == COUNT(looked_at));
    gpu_buffers_free(context, &d.b);
    gpu_case_free(&d.c);
    vkattn_plan_destroy(d.plan);
    vkattn_device_destroy(device);
    cr_expect(spy.live == 0);
    gpu_close(context);
}

/* ---- Recording from threads ------------------------------------------------------------------------------------ */

struct recorder {
    vkattn_context *context;
    const vkattn_plan *plan;
    vkattn_lengths lengths;
    struct gpu_case c;
    struct gpu_buffers b;
    VkCommandPool pool;
    VkCommandBuffer cmd;
    pthread_t thread;
};

static void *record_often(void *user)
{
    struct recorder *r = user;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    for (int i = 0; i < 200; i++) {
        GPU_VK(vkResetCommandPool(r->context->device, r->pool, 0));
        GPU_VK(vkBeginCommandBuffer(r->cmd, &begin));
        gpu_ok(vkattn_record(r->plan, r->cmd, &r->b.buffers, &r->lengths));
        GPU_VK(vkEndCommandBuffer(r->cmd));
    }
    return NULL;
}

static void make_recorder(struct recorder *r, vkattn_context *context, const vkattn_plan *plan,
                          const vkattn_problem *problem)
{
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = context->queue_family};
    r->context = context;
    r->plan = plan;
    r->c = gpu_case_make(problem);
    r->b = gpu_buffers_make(context, &r->c, plan);
    GPU_VK(vkCreateCommandPool(context->device, &pool, NULL, &r->pool));
    const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = r->pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = 1};
    GPU_VK(vkAllocateCommandBuffers(context->device, &info, &r->cmd));
}

static void submit_all(vkattn_context *context, const struct recorder *recorders, uint32_t count)
{
    VkCommandBuffer cmds[16];
    for (uint32_t i = 0; i < count; i++)
        cmds[i] = recorders[i].cmd;
    const VkSubmitInfo submit = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = count, .pCommandBuffers = cmds};
    GPU_VK(vkQueueSubmit(context->queue, 1, &submit, VK_NULL_HANDLE));
    GPU_VK(vkQueueWaitIdle(context->queue));
}

static void expect_threads_record(vkattn_context *context, vkattn_access access)
{
    vkattn_problem p = small;
    p.flags = VKATTN_WRITE_WEIGHTS;
    struct recorder recorders[8];
    const vkattn_options options = {.kernel = quick.kernel, .access = access};
    vkattn_plan *plan = create_plan(context->vkattn, &p, &options);
    for (uint32_t i = 0; i < COUNT(recorders); i++) {
        make_recorder(&recorders[i], context, plan, &p);
        recorders[i].lengths = (vkattn_lengths){1 + i % p.len_q, 1 + i};
    }
    for (size_t i = 0; i < COUNT(recorders); i++)
        cr_assert(pthread_create(&recorders[i].thread, NULL, record_often, &recorders[i]) == 0);
    for (size_t i = 0; i < COUNT(recorders); i++)
        cr_assert(pthread_join(recorders[i].thread, NULL) == 0);
    submit_all(context, recorders, COUNT(recorders));
    for (size_t i = 0; i < COUNT(recorders); i++) {
        struct recorder *r = &recorders[i];
        gpu_buffers_get(&r->b, &r->c);
        gpu_case_expect(&r->c, &r->lengths, "recorded in a thread");
        gpu_buffers_free(context, &r->b);
        gpu_case_free(&r->c);
        vkDestroyCommandPool(context->device, r->pool, NULL);
    }
    vkattn_plan_destroy(plan);
}

Test(api, threads_record_one_plan_at_once)
{
    vkattn_context *context = gpu_open(0);
    if (context->enabled.buffer_device_address)
        expect_threads_record(context, VKATTN_ACCESS_ADDRESS);
    if (context->enabled.push_descriptor)
        expect_threads_record(context, VKATTN_ACCESS_DESCRIPTOR);
    gpu_close(context);
}

/* ---- Devices --------------------------------------------------------------------------------------------------- */

#define EXPECT_INFO(status, part, change)                               \
    do {                                                                \
        vkattn_device *device = (vkattn_device *)&context;              \
        vkattn_device_info info = gpu_info(context);                    \
        change;                                                         \
        gpu_expect(vkattn_device_create(&info, &device), status, part); \
        cr_expect(device == NULL, "a failure leaves NULL");             \
    } while (0)

Test(api, device_create_refuses_misuse)
{
    vkattn_context *context = gpu_open(0);
    static const vkattn_enabled nothing;
    EXPECT_INFO(VKATTN_INVALID, "info.get_instance_proc_addr is NULL", info.get_instance_proc_addr = NULL);
    EXPECT_INFO(VKATTN_INVALID, "info.instance is VK_NULL_HANDLE", info.instance = VK_NULL_HANDLE);
    EXPECT_INFO(VKATTN_INVALID, "info.physical_device is VK_NULL_HANDLE", info.physical_device = VK_NULL_HANDLE);
    EXPECT_INFO(VKATTN_INVALID, "info.device is VK_NULL_HANDLE", info.device = VK_NULL_HANDLE);
    EXPECT_INFO(VKATTN_INVALID, "info.enabled is NULL", info.enabled = NULL);
    EXPECT_INFO(VKATTN_UNSUPPORTED, "neither buffer device addresses nor push descriptors", info.enabled = &nothing);
    EXPECT_INFO(VKATTN_UNSUPPORTED, "neither buffer device addresses nor push descriptors",
                info.limits = VKATTN_LIMIT_NO_ADDRESSES | VKATTN_LIMIT_NO_DESCRIPTORS);
    const vkattn_device_info info = gpu_info(context);
    vkattn_device *device;
    gpu_expect(vkattn_device_create(&info, NULL), VKATTN_INVALID, "device is NULL");
    gpu_expect(vkattn_device_create_sized(NULL, sizeof info, &device), VKATTN_INVALID, "info is NULL");
    vkattn_device_destroy(NULL);
    gpu_close(context);
}

Test(api, a_loader_that_lacks_a_function_is_named)
{
    vkattn_context *context = gpu_open(0);
    const char *const functions[] = {"vkGetPhysicalDeviceProperties2", "vkGetDeviceProcAddr", "vkCmdDispatch",
                                     "vkCreateComputePipelines", "vkQueueSubmit"};
    for (size_t i = 0; i < COUNT(functions); i++) {
        spy_reset();
        spy.hidden = functions[i];
        EXPECT_INFO(VKATTN_FAILED, functions[i], info.get_instance_proc_addr = spy_get_instance_proc_addr);
        cr_expect(spy.live == 0);
    }
    gpu_close(context);
}

Test(api, wants_refuse_misuse)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_wants wants;
    const PFN_vkGetInstanceProcAddr get = context->get_instance_proc_addr;
    gpu_expect(vkattn_device_wants_get(NULL, context->instance, context->physical_device, &wants), VKATTN_INVALID,
               "get_instance_proc_addr is NULL");
    gpu_expect(vkattn_device_wants_get(get, VK_NULL_HANDLE, context->physical_device, &wants), VKATTN_INVALID,
               "instance is VK_NULL_HANDLE");
    gpu_expect(vkattn_device_wants_get(get, context->instance, VK_NULL_HANDLE, &wants), VKATTN_INVALID,
               "physical_device is VK_NULL_HANDLE");
    gpu_expect(vkattn_device_wants_get(get, context->instance, context->physical_device, NULL), VKATTN_INVALID,
               "wants is NULL");
    gpu_close(context);
}

static void expect_limits(const struct caps *caps, const struct caps *all, uint32_t limits)
{
    const bool no_subgroups = limits & (VKATTN_LIMIT_NO_SUBGROUPS | VKATTN_LIMIT_MINIMUM);
    cr_expect(caps->addresses == (all->addresses && !(limits & VKATTN_LIMIT_NO_ADDRESSES)));
    cr_expect(caps->descriptors == (all->descriptors && !(limits & VKATTN_LIMIT_NO_DESCRIPTORS)));
    cr_expect(caps->float_controls == (all->float_controls && !(limits & VKATTN_LIMIT_NO_FLOAT_CONTROLS)));
    cr_expect(caps->subgroup_size == (no_subgroups ? 0 : all->subgroup_size));
    cr_expect(caps->subgroup_size_control == (all->subgroup_size_control && !no_subgroups));
    cr_expect(caps->device_class == (limits & VKATTN_LIMIT_UNKNOWN_GPU ? CLASS_UNKNOWN : all->device_class));
    if (limits & VKATTN_LIMIT_MINIMUM)
        cr_expect(caps->max_invocations == 128 && caps->shared_bytes == 16384);
}

Test(api, a_limited_device_is_still_right)
{
    vkattn_context *context = gpu_open(0);
    const struct caps *all = vkattn_device_caps(context->vkattn);
    const uint32_t limits[] = {VKATTN_LIMIT_NO_SUBGROUPS, VKATTN_LIMIT_MINIMUM,        VKATTN_LIMIT_NO_FLOAT_CONTROLS,
                               VKATTN_LIMIT_NO_ADDRESSES, VKATTN_LIMIT_NO_DESCRIPTORS, VKATTN_LIMIT_UNKNOWN_GPU};
    for (size_t i = 0; i < COUNT(limits); i++) {
        vkattn_device_info info = gpu_info(context);
        vkattn_problem p = small;
        p.dim_qk = 7;
        p.kv_type = p.o_type = VKATTN_F16;
        info.limits = limits[i];
        if ((limits[i] == VKATTN_LIMIT_NO_ADDRESSES && !all->descriptors) ||
            (limits[i] == VKATTN_LIMIT_NO_DESCRIPTORS && !all->addresses))
            continue;
        vkattn_device *device = create_device(&info);
        expect_limits(vkattn_device_caps(device), all, limits[i]);
        expect_attended(device, &p, limits[i] == VKATTN_LIMIT_MINIMUM ? NULL : &quick, NULL, "limited");
        vkattn_device_destroy(device);
    }
    gpu_close(context);
}

static uint32_t own_messages;

static VKAPI_ATTR VkBool32 VKAPI_CALL on_own_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                     VkDebugUtilsMessageTypeFlagsEXT types,
                                                     const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    (void)severity, (void)types, (void)user;
    cr_log_error("%s", data->pMessage);
    own_messages++;
    return VK_FALSE;
}

/* An instance of Vulkan 1.1, with the validation layer where the helper found it. */
static VkInstance create_old_instance(bool validation)
{
    const char *const layers[] = {"VK_LAYER_KHRONOS_validation"}, *const extensions[] = {"VK_EXT_debug_utils"};
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_1};
    const VkDebugUtilsMessengerCreateInfoEXT messenger = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity =
            VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = on_own_message};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pNext = validation ? &messenger : NULL,
                                       .pApplicationInfo = &application,
                                       .enabledLayerCount = validation,
                                       .ppEnabledLayerNames = layers,
                                       .enabledExtensionCount = validation,
                                       .ppEnabledExtensionNames = extensions};
    VkInstance instance;
    GPU_VK(vkCreateInstance(&info, NULL, &instance));
    volkLoadInstance(instance);
    if (validation) {
        VkDebugUtilsMessengerEXT unused; /* goes with the instance: it is to see the device's end */
        GPU_VK(vkCreateDebugUtilsMessengerEXT(instance, &messenger, NULL, &unused));
    }
    return instance;
}

static VkDevice create_wanted(VkPhysicalDevice physical, const vkattn_device_wants *wants)
{
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &wants->features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = wants->extension_count,
                                     .ppEnabledExtensionNames = wants->extensions};
    VkDevice device;
    GPU_VK(vkCreateDevice(physical, &info, NULL, &device));
    return device;
}

static bool names_an_access(const vkattn_device_wants *wants)
{
    for (uint32_t i = 0; i < wants->extension_count; i++)
        if (strcmp(wants->extensions[i], VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME) == 0 ||
            strcmp(wants->extensions[i], VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME) == 0)
            return true;
    return false;
}

/* The minimum is Vulkan 1.1: an application that asked for no more may use a newer driver's features as extensions. */
Test(api, an_instance_of_vulkan_1_1_is_enough)
{
    vkattn_context *context = gpu_open(0);
    const bool validation = context->validating;
    const uint32_t index = context->index;
    gpu_close(context);
    const VkInstance instance = create_old_instance(validation);
    VkPhysicalDevice physical[16];
    uint32_t count = COUNT(physical);
    GPU_VK(vkEnumeratePhysicalDevices(instance, &count, physical));
    vkattn_device_wants wants;
    gpu_ok(vkattn_device_wants_get(vkGetInstanceProcAddr, instance, physical[index], &wants));
    if (!names_an_access(&wants))
        cr_skip_test("the driver has addresses from Vulkan 1.2 on only, and no push descriptors");
    vkattn_device_info info = {.get_instance_proc_addr = vkGetInstanceProcAddr,
                               .instance = instance,
                               .physical_device = physical[index],
                               .device = create_wanted(physical[index], &wants),
                               .enabled = &wants.enabled};
    vkGetDeviceQueue(info.device, 0, 0, &info.queue);
    vkattn_device *device = create_device(&info);
    expect_attended(device, &small, &quick, NULL, "Vulkan 1.1");
    vkattn_device_destroy(device);
    vkDestroyDevice(info.device, NULL);
    cr_expect(own_messages == 0, "%u validation messages", own_messages);
}

/* ---- Pipeline caches ------------------------------------------------------------------------------------------- */

static VkPipelineCache create_cache(VkDevice device, const void *data, size_t size)
{
    const VkPipelineCacheCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, .initialDataSize = size, .pInitialData = data};
    VkPipelineCache cache;
    GPU_VK(vkCreatePipelineCache(device, &info, NULL, &cache));
    return cache;
}

/* Plan with a cache, on a device of the library's of its own: every pipeline must be given the cache. */
static void plan_with_cache(const vkattn_context *context, VkPipelineCache cache, bool attend)
{
    vkattn_device_info info = gpu_info(context);
    info.get_instance_proc_addr = spy_get_instance_proc_addr;
    info.pipeline_cache = cache;
    spy_reset();
    vkattn_device *device = create_device(&info);
    vkattn_plan *plan = create_plan(device, &small, &quick);
    cr_expect(spy.pipelines == 1 && spy.cache == cache, "%d pipelines", (int)spy.pipelines);
    if (attend)
        expect_attended(device, &small, &quick, NULL, "with a pipeline cache");
    vkattn_plan_destroy(plan);
    vkattn_device_destroy(device);
}

/* What a driver keeps in a cache is its own affair; RADV keeps the code. A null device computes nothing. */
Test(api, the_callers_pipeline_cache_is_used)
{
    vkattn_context *context = gpu_open(0);
    const bool is_null = strstr(context->listed.name, "Null hardware") != NULL;
    VkPipelineCache first = create_cache(context->device, NULL, 0);
    size_t empty, full;
    GPU_VK(vkGetPipelineCacheData(context->device, first, &empty, NULL));
    plan_with_cache(context, first, !is_null);
    GPU_VK(vkGetPipelineCacheData(context->device, first, &full, NULL));
    cr_expect(full >= empty && (full > empty || !is_null), "%zu bytes, and %zu when it was empty", full, empty);
    void *data = malloc(full);
    cr_assert(data);
    GPU_VK(vkGetPipelineCacheData(context->device, first, &full, data));
    vkDestroyPipelineCache(context->device, first, NULL);
    VkPipelineCache second = create_cache(context->device, data, full);
    free(data);
    plan_with_cache(context, second, !is_null);
    size_t again;
    GPU_VK(vkGetPipelineCacheData(context->device, second, &again, NULL));
    /* A pipeline found in it adds nothing; RADV fills entries up when it reads them. */
    cr_expect(again < full + (full - empty) / 4 || !is_null, "the second time the cache grew from %zu bytes to %zu",
              full, again);
    vkDestroyPipelineCache(context->device, second, NULL);
    gpu_close(context);
}

/* ---- Failures of the driver ------------------------------------------------------------------------------------ */

/* Device and plan; the first status that is not VKATTN_OK. */
static vkattn_status create_all(const vkattn_device_info *info, const vkattn_problem *problem)
{
    vkattn_device *device;
    vkattn_plan *plan = NULL;
    vkattn_error_set(VKATTN_OK, "");
    vkattn_status status = vkattn_device_create(info, &device);
    cr_expect((status == VKATTN_OK) == (device != NULL));
    if (status != VKATTN_OK)
        return status;
    status = vkattn_plan_create(device, problem, &quick, &plan);
    cr_expect((status == VKATTN_OK) == (plan != NULL));
    vkattn_plan_destroy(plan);
    vkattn_device_destroy(device);
    return status;
}

static void fail_at(int n, VkResult result)
{
    spy.fallible = 0;
    spy.fail_at = n;
    spy.result = result;
    vkattn_error_set(VKATTN_OK, "");
}

/* Whether the n-th call was there to fail; then the status says so. */
static bool has_failed(int n, vkattn_status status, vkattn_status expected)
{
    if (spy.fallible < n) {
        gpu_ok(status);
        return false;
    }
    cr_expect(status == expected, "failure %d gave %s", n, vkattn_status_name(status));
    cr_expect(strncmp(vkattn_last_error(), "vk", 2) == 0, "\"%s\" does not name the call", vkattn_last_error());
    return true;
}

Test(api, every_failure_of_creation_is_returned_and_leaks_nothing)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_info info = gpu_info(context);
    info.get_instance_proc_addr = spy_get_instance_proc_addr;
    bool more = true;
    int n;
    for (n = 1; more; n++) {
        fail_at(n, VK_ERROR_OUT_OF_DEVICE_MEMORY);
        more = has_failed(n, create_all(&info, &small), VKATTN_NO_MEMORY);
        cr_expect(spy.live == 0, "failure %d left %d objects", n, (int)spy.live);
    }
    cr_expect(n > 4, "only %d calls may fail?", n - 2);
    gpu_close(context);
}

static vkattn_status attend_failing(vkattn_device *device, struct gpu_case *c, int n, VkResult result)
{
    const vkattn_tensors tensors = gpu_case_tensors(c);
    const int before = spy.live;
    fail_at(n, result);
    const vkattn_status status = vkattn_attend(device, &c->problem, &quick, &tensors, NULL);
    cr_expect(spy.live == before, "failure %d left %d objects", n, (int)spy.live - before);
    cr_expect(status == VKATTN_OK || gpu_case_untouched(c), "failure %d wrote", n);
    return status;
}

Test(api, every_failure_of_attend_is_returned_and_leaks_nothing)
{
    vkattn_context *context = gpu_open(0);
    struct gpu_case c = gpu_case_make(&small);
    vkattn_device *device = create_watched(context);
    vkattn_plan *plan = create_plan(device, &small, &quick); /* from here on its pipelines are there */
    int n = 1;
    while (has_failed(n, attend_failing(device, &c, n, VK_ERROR_OUT_OF_HOST_MEMORY), VKATTN_NO_MEMORY))
        n++;
    gpu_case_expect(&c, NULL, "in the end");
    cr_expect(n > 15, "only %d calls may fail?", n - 1);
    gpu_case_poison(&c);
    for (int at = 1; at < n; at++) {
        has_failed(at, attend_failing(device, &c, at, VK_ERROR_DEVICE_LOST), VKATTN_DEVICE_LOST);
        has_failed(at, attend_failing(device, &c, at, VK_ERROR_INITIALIZATION_FAILED), VKATTN_FAILED);
    }
    vkattn_plan_destroy(plan);
    vkattn_device_destroy(device);
    cr_expect(spy.live == 0);
    gpu_case_free(&c);
    gpu_close(context);
}

/* ---- The caller's allocator ------------------------------------------------------------------------------------ */

static struct {
    atomic_int calls, live;
    int fail_at; /* 0: never */
} allocator;

/* Before each block: where it really begins, and its size. */
struct header {
    void *block;
    size_t size;
};

static struct header *header_of(void *memory)
{
    return (struct header *)memory - 1;
}

static VKAPI_ATTR void *VKAPI_CALL allocate(void *user, size_t size, size_t alignment, VkSystemAllocationScope scope)
{
    (void)user, (void)scope;
    if (++allocator.calls == allocator.fail_at)
        return NULL;
    const size_t align = alignment < sizeof(struct header) ? sizeof(struct header) : alignment;
    char *block = malloc(size + 2 * align);
    if (block == NULL)
        return NULL;
    void *memory = block + 2 * align - (uintptr_t)block % align;
    *header_of(memory) = (struct header){block, size};
    allocator.live++;
    return memory;
}

static VKAPI_ATTR void VKAPI_CALL release(void *user, void *memory)
{
    (void)user;
    if (memory == NULL)
        return;
    allocator.live--;
    free(header_of(memory)->block);
}

static VKAPI_ATTR void *VKAPI_CALL reallocate(void *user, void *memory, size_t size, size_t alignment,
                                              VkSystemAllocationScope scope)
{
    if (size == 0) {
        release(user, memory);
        return NULL;
    }
    void *moved = allocate(user, size, alignment, scope);
    if (memory == NULL || moved == NULL)
        return moved;
    memcpy(moved, memory, header_of(memory)->size < size ? header_of(memory)->size : size);
    release(user, memory);
    return moved;
}

static const VkAllocationCallbacks callbacks = {
    .pfnAllocation = allocate, .pfnReallocation = reallocate, .pfnFree = release};

/* Device and plan only: Mesa 22.3.6 crashes where a command buffer gets no memory. */
Test(api, the_callers_allocator_is_used_and_may_fail)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_info info = gpu_info(context);
    info.allocator = &callbacks;
    gpu_ok(create_all(&info, &small));
    cr_expect(allocator.calls > 0 && allocator.live == 0, "%d calls, %d blocks left", (int)allocator.calls,
              (int)allocator.live);
    const int calls = allocator.calls;
    for (int n = 1; n <= calls; n++) {
        allocator.calls = 0;
        allocator.fail_at = n;
        const vkattn_status status = create_all(&info, &small);
        /* A driver may do without what it could not allocate. */
        cr_expect(status == VKATTN_NO_MEMORY || status == VKATTN_OK, "allocation %d: %s, %s", n,
                  vkattn_status_name(status), vkattn_last_error());
        cr_expect(allocator.live == 0, "after a failure of allocation %d, %d blocks are left", n, (int)allocator.live);
    }
    gpu_close(context);
}

Test(api, attend_uses_the_callers_allocator)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_info info = gpu_info(context);
    info.allocator = &callbacks;
    vkattn_device *device = create_device(&info);
    expect_attended(device, &small, &quick, NULL, "with an allocator");
    vkattn_device_destroy(device);
    cr_expect(allocator.live == 0, "%d blocks are left", (int)allocator.live);
    gpu_close(context);
}

/* ---- Parts of the keys ------------------------------------------------------------------------------------------ */

enum { MEMBERS = 3, LONGEST = 600 };

/* O and LSE of member `b` of a batch whose keys are cut into a fixed number of parts. */
static void attend_members(vkattn_device *device, struct gpu_case *c, uint32_t len_kv)
{
    const vkattn_options options = {.kernel = "fwd_decode", .parts = 5};
    const vkattn_tensors tensors = gpu_case_tensors(c);
    gpu_case_poison(c);
    gpu_ok(vkattn_attend(device, &c->problem, &options, &tensors, &(vkattn_lengths){c->problem.len_q, len_kv}));
}

/* With the number of parts given, a member's result has the same bits alone, among others, and whatever the longest
 * member of the call is. */
Test(api, a_member_does_not_depend_on_the_batch)
{
    vkattn_context *context = gpu_open(0);
    static const int32_t lengths[MEMBERS] = {77, LONGEST, 300};
    const vkattn_problem p = {.batch = MEMBERS,
                              .heads = 4,
                              .kv_heads = 2,
                              .len_q = 2,
                              .len_kv = LONGEST,
                              .dim_qk = 32,
                              .flags = VKATTN_WRITE_LSE | VKATTN_KV_LENGTHS};
    vkattn_plan *plan = gpu_plan_if_can(context->vkattn, &p, &(vkattn_options){.kernel = "fwd_decode"});
    if (!plan) {
        gpu_close(context);
        cr_skip_test("fwd_decode does not run here");
    }
    vkattn_plan_destroy(plan);
    struct gpu_case all = gpu_case_make(&p);
    all.kv_lengths = lengths;
    attend_members(context->vkattn, &all, LONGEST);
    for (uint32_t b = 0; b < MEMBERS; b++) {
        vkattn_problem one = p;
        one.batch = 1;
        struct gpu_case alone = gpu_case_make(&one);
        alone.kv_lengths = &lengths[b];
        for (int id = TENSOR_Q; id <= TENSOR_V; id++)
            memcpy(alone.data[id], (char *)all.data[id] + b * alone.size[id], alone.size[id]);
        for (int shortened = 0; shortened < 2; shortened++) {
            attend_members(context->vkattn, &alone, shortened ? (uint32_t)lengths[b] : LONGEST);
            for (int id = TENSOR_O; id <= TENSOR_LSE; id++)
                cr_expect(memcmp(alone.data[id], (char *)all.data[id] + b * alone.size[id], alone.size[id]) == 0,
                          "member %u, %s, %s", b, vkattn_tensor_names[id], shortened ? "shortened" : "whole");
        }
        gpu_case_free(&alone);
    }
    gpu_case_free(&all);
    gpu_close(context);
}

/* ---- Tuning ---------------------------------------------------------------------------------------------------- */

static void note_message(void *user, const char *text)
{
    snprintf(user, 256, "%s", text);
}

/* A refused tuning is told, and leaves every report as it is; an own one moves the cost. */
Test(api, a_tuning_is_taken_or_refused)
{
    vkattn_context *context = gpu_open(0);
    vkattn_device_info info = gpu_info(context);
    char text[2048], message[256] = "";
    struct tuning tuning;
    vkattn_report plain, tuned;
    memset(&tuning, 0, sizeof tuning);
    tuning.scales[0][0] = tuning.scales[0][1] = 2000;
    const struct tuning_key *key = vkattn_device_key(context->vkattn);
    const size_t size = vkattn_tuning_write(&tuning, key, text, sizeof text);
    cr_expect(vkattn_device_tuning_refusal(context->vkattn) == NULL, "there was none");
    gpu_ok(vkattn_explain(context->vkattn, &small, NULL, &plain));

    info.tuning = text, info.tuning_size = size;
    vkattn_device *device = create_device(&info);
    memset(text, 0, sizeof text); /* the library keeps nothing of it */
    cr_expect(vkattn_device_tuning_refusal(device) == NULL);
    gpu_ok(vkattn_explain(device, &small, NULL, &tuned));
    cr_expect(tuned.candidates[0].cost == 2 * plain.candidates[0].cost);
    expect_attended(device, &small, &quick, NULL, "tuned");
    vkattn_device_destroy(device);

    struct tuning_key other = *key;
    other.driver_version++;
    info.tuning_size = vkattn_tuning_write(&tuning, &other, text, sizeof text);
    info.message = note_message, info.message_user = message;
    device = create_device(&info);
    cr_assert(vkattn_device_tuning_refusal(device));
    cr_expect(strstr(vkattn_device_tuning_refusal(device), "another version of the driver"), "%s",
              vkattn_device_tuning_refusal(device));
    cr_expect_str_eq(message, vkattn_device_tuning_refusal(device));
    gpu_ok(vkattn_explain(device, &small, NULL, &tuned));
    cr_expect(memcmp(&tuned, &plain, sizeof plain) == 0);
    vkattn_device_destroy(device);
    gpu_close(context);
}

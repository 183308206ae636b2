#include "gpu.h"

#include "compare.h"
#include "problem.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)GPU_TENSORS == (int)TENSOR_WEIGHTS + 1, "a case holds the first tensors of enum tensor_id");

const unsigned char gpu_poison = 0xa5;

/* ---- Devices --------------------------------------------------------------------------------------------------- */

static uint32_t defects; /* messages of the validation layer so far; Criterion gives each test a process */
static char first_defect[2000];

static const char *allowed_part;
static uint32_t let_pass; /* messages that held it */

void gpu_allow(const char *part)
{
    allowed_part = part;
}

static void on_message(void *user, const char *text)
{
    static const char *const signs[] = {"VUID", "SYNC-", "UNASSIGNED", "Validation"};
    (void)user;
    if (allowed_part && strstr(text, allowed_part)) {
        let_pass++;
        return;
    }
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strstr(text, signs[i])) {
            if (defects++ == 0)
                snprintf(first_defect, sizeof first_defect, "%s", text);
            return;
        }
}

vkattn_context *gpu_open(uint32_t limits)
{
    vkattn_context *context;
    const vkattn_open_info info = {.limits = limits, .message = on_message, .no_selftest = 1};
    const vkattn_status status = vkattn_open(&info, &context);
    if (status == VKATTN_UNSUPPORTED)
        cr_skip_test("%s", vkattn_last_error());
    gpu_ok(status);
    const char *asked = getenv("VKATTN_VALIDATION");
    cr_assert(context->validating || !asked || strcmp(asked, "1") != 0, "there is no validation layer");
    return context;
}

void gpu_close(vkattn_context *context)
{
    const uint32_t seen = context->validation_messages - let_pass;
    vkattn_close(context);
    cr_assert(seen == 0 && defects == 0, "%u validation messages, first: %s", seen > defects ? seen : defects,
              first_defect);
}

vkattn_device_info gpu_info(const vkattn_context *context)
{
    return (vkattn_device_info){.get_instance_proc_addr = context->get_instance_proc_addr,
                                .instance = context->instance,
                                .physical_device = context->physical_device,
                                .device = context->device,
                                .enabled = &context->enabled,
                                .queue = context->queue,
                                .queue_family = context->queue_family};
}

bool gpu_is_cpu(const vkattn_context *context)
{
    return context->listed.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
}

bool gpu_is_slow(const vkattn_context *context)
{
    return strstr(context->listed.name, "SwiftShader") != NULL;
}

/* ---- Statuses -------------------------------------------------------------------------------------------------- */

void gpu_expect(vkattn_status got, vkattn_status expected, const char *part)
{
    cr_expect(got == expected, "%s instead of %s: %s", vkattn_status_name(got), vkattn_status_name(expected),
              vkattn_last_error());
    cr_expect(strstr(vkattn_last_error(), part), "\"%s\" does not say \"%s\"", vkattn_last_error(), part);
    vkattn_error_set(VKATTN_OK, ""); /* so that the next call must leave a sentence of its own */
}

void gpu_ok(vkattn_status status)
{
    cr_assert(status == VKATTN_OK, "%s: %s", vkattn_status_name(status), vkattn_last_error());
}

void gpu_vk(VkResult result, const char *call)
{
    cr_assert(result == VK_SUCCESS, "%s: VkResult %d", call, (int)result);
}

/* ---- Problems -------------------------------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014), to -1 .. 1. */
static float random_value(void)
{
    static uint64_t state = 7;
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (float)(((double)((z ^ z >> 31) >> 11) * 0x1p-53 - 0.5) * 2);
}

static vkattn_dtype type_of(const vkattn_problem *p, int id)
{
    switch (id) {
    case TENSOR_Q:
        return p->q_type;
    case TENSOR_K:
    case TENSOR_V:
        return p->kv_type;
    case TENSOR_O:
        return p->o_type;
    default:
        return VKATTN_F32;
    }
}

static bool is_output(int id)
{
    return id >= TENSOR_O;
}

static struct problem canonical(const vkattn_problem *problem)
{
    struct problem p;
    gpu_ok(vkattn_problem_canonical(problem, sizeof *problem, &p));
    return p;
}

struct gpu_case gpu_case_make(const vkattn_problem *problem)
{
    const struct problem p = canonical(problem);
    const vkattn_lengths whole = {p.len_q, p.len_kv};
    struct gpu_case c = {.problem = *problem};
    for (int id = 0; id < GPU_TENSORS; id++) {
        uint64_t bits;
        if (!p.tensors[id].used)
            continue;
        cr_assert(vkattn_tensor_extent(&p, (enum tensor_id)id, &whole, &bits));
        c.size[id] = bits / 8;
        c.data[id] = malloc(c.size[id] + 1);
        cr_assert(c.data[id]);
        const vkattn_dtype type = type_of(problem, id);
        const size_t element = vkattn_dtype_size(type);
        for (size_t at = 0; !is_output(id) && at < c.size[id]; at += element)
            vkattn_encode(type, random_value(), (char *)c.data[id] + at);
    }
    gpu_case_poison(&c);
    return c;
}

void gpu_case_free(struct gpu_case *c)
{
    for (int id = 0; id < GPU_TENSORS; id++)
        free(c->data[id]);
    *c = (struct gpu_case){0};
}

vkattn_tensors gpu_case_tensors(const struct gpu_case *c)
{
    return (vkattn_tensors){.q = c->data[TENSOR_Q],
                            .k = c->data[TENSOR_K],
                            .v = c->data[TENSOR_V],
                            .o = c->data[TENSOR_O],
                            .lse = c->data[TENSOR_LSE],
                            .weights = c->data[TENSOR_WEIGHTS],
                            .mask = c->mask,
                            .bias = c->bias,
                            .alibi = c->alibi,
                            .sinks = c->sinks,
                            .kv_lengths = c->kv_lengths,
                            .q_lengths = c->q_lengths,
                            .prefix = c->prefix,
                            .q_segments = c->q_segments,
                            .kv_segments = c->kv_segments};
}

void gpu_case_poison(struct gpu_case *c)
{
    for (int id = TENSOR_O; id < GPU_TENSORS; id++)
        if (c->data[id])
            memset(c->data[id], gpu_poison, c->size[id]);
}

static bool only_poison(const unsigned char *bytes, const bool *but_not, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != gpu_poison && !(but_not && but_not[i]))
            return false;
    return true;
}

bool gpu_case_untouched(const struct gpu_case *c)
{
    for (int id = TENSOR_O; id < GPU_TENSORS; id++)
        if (c->data[id] && !only_poison(c->data[id], NULL, c->size[id]))
            return false;
    return true;
}

static struct compare_view view_of(const struct gpu_case *c, const struct problem *p, int id,
                                   const vkattn_lengths *lengths)
{
    const struct tensor t = vkattn_tensor_of(p, (enum tensor_id)id, lengths);
    return (struct compare_view){.data = c->data[id],
                                 .type = type_of(&c->problem, id),
                                 .shape = {p->batch, t.heads, t.rows, t.row_width},
                                 .strides = {t.batch_stride, t.head_stride, t.row_stride}};
}

static size_t elements_of(const struct compare_view *view)
{
    return (size_t)(view->shape[0] * view->shape[1] * view->shape[2] * view->shape[3]);
}

static bool gaps_untouched(const struct gpu_case *c, int id, const struct compare_view *view)
{
    bool *covered = calloc(c->size[id] + 1, sizeof *covered);
    cr_assert(covered);
    const size_t element = vkattn_dtype_size(view->type), row = (size_t)view->shape[3] * element;
    for (uint64_t b = 0; b < view->shape[0]; b++)
        for (uint64_t h = 0; h < view->shape[1]; h++)
            for (uint64_t r = 0; r < view->shape[2]; r++) {
                const uint64_t first = b * view->strides[0] + h * view->strides[1] + r * view->strides[2];
                memset(covered + first * element, true, row);
            }
    const bool untouched = only_poison(c->data[id], covered, c->size[id]);
    free(covered);
    return untouched;
}

static double *doubles(size_t count)
{
    double *values = calloc(count + 1, sizeof *values);
    cr_assert(values);
    return values;
}

void gpu_case_expect(const struct gpu_case *c, const vkattn_lengths *lengths, const char *what)
{
    static const char *const names[GPU_TENSORS] = {"q", "k", "v", "O", "LSE", "W"};
    const struct problem p = canonical(&c->problem);
    const vkattn_lengths call = lengths ? *lengths : (vkattn_lengths){p.len_q, p.len_kv};
    const vkattn_tensors tensors = gpu_case_tensors(c);
    double *values[GPU_TENSORS] = {0}, *bounds[GPU_TENSORS] = {0};
    struct compare_view views[GPU_TENSORS];
    for (int id = TENSOR_O; id < GPU_TENSORS; id++) {
        views[id] = view_of(c, &p, id, &call);
        values[id] = doubles(elements_of(&views[id]));
        bounds[id] = doubles(elements_of(&views[id]));
    }
    /* What the case lacks is not computed. */
    const vkattn_reference reference = {.o = values[TENSOR_O],
                                        .lse = c->data[TENSOR_LSE] ? values[TENSOR_LSE] : NULL,
                                        .weights = c->data[TENSOR_WEIGHTS] ? values[TENSOR_WEIGHTS] : NULL,
                                        .o_bound = bounds[TENSOR_O],
                                        .lse_bound = c->data[TENSOR_LSE] ? bounds[TENSOR_LSE] : NULL,
                                        .weights_bound = c->data[TENSOR_WEIGHTS] ? bounds[TENSOR_WEIGHTS] : NULL};
    gpu_ok(vkattn_reference_forward(&c->problem, &tensors, &call, c->p_type, &reference));
    for (int id = TENSOR_O; id < GPU_TENSORS; id++) {
        if (!c->data[id])
            continue;
        const struct comparison worst = compare(&views[id], values[id], bounds[id]);
        cr_expect(compare_right(&worst), "%s: %s[%u,%u,%u,%u] is %g, not %g: %.3g times the bound", what, names[id],
                  (unsigned)worst.index[0], (unsigned)worst.index[1], (unsigned)worst.index[2],
                  (unsigned)worst.index[3], worst.value, worst.reference, worst.ratio);
        cr_expect(gaps_untouched(c, id, &views[id]), "%s: %s was written beside its elements", what, names[id]);
    }
    for (int id = TENSOR_O; id < GPU_TENSORS; id++) {
        free(values[id]);
        free(bounds[id]);
    }
}

vkattn_plan *gpu_plan_if_can(vkattn_device *device, const vkattn_problem *problem, const vkattn_options *options)
{
    vkattn_plan *plan;
    const vkattn_status status = vkattn_plan_create(device, problem, options, &plan);
    const bool no_forward_kernel = status == VKATTN_INVALID && strstr(vkattn_last_error(), "no forward kernel");
    if (status != VKATTN_UNSUPPORTED && !no_forward_kernel)
        gpu_ok(status);
    return plan;
}

/* ---- Buffers and recording ------------------------------------------------------------------------------------- */

static void copy_tensors(const struct gpu_buffers *b, const struct gpu_case *c, int first, bool to_device)
{
    for (int id = first; id < GPU_TENSORS; id++) {
        if (!c->data[id])
            continue;
        if (to_device)
            memcpy(b->tensors[id].data, c->data[id], c->size[id]);
        else
            memcpy(c->data[id], b->tensors[id].data, c->size[id]);
    }
}

void gpu_buffers_put(const struct gpu_buffers *b, const struct gpu_case *c)
{
    copy_tensors(b, c, TENSOR_O, true);
}

void gpu_buffers_get(const struct gpu_buffers *b, struct gpu_case *c)
{
    copy_tensors(b, c, TENSOR_O, false);
}

static vkattn_buffer whole(const vkattn_mapped *mapped, size_t size)
{
    return (vkattn_buffer){.buffer = mapped->buffer, .size = size};
}

struct gpu_buffers gpu_buffers_make(vkattn_context *context, const struct gpu_case *c, const vkattn_plan *plan)
{
    struct gpu_buffers b = {0};
    vkattn_buffer *const targets[GPU_TENSORS] = {&b.buffers.q, &b.buffers.k,   &b.buffers.v,
                                                 &b.buffers.o, &b.buffers.lse, &b.buffers.weights};
    for (int id = 0; id < GPU_TENSORS; id++)
        if (c->data[id]) {
            gpu_ok(vkattn_mapped_create(context, (c->size[id] + 3) / 4 * 4, &b.tensors[id]));
            *targets[id] = whole(&b.tensors[id], c->size[id]);
        }
    const vkattn_workspace workspace = vkattn_plan_workspace(plan);
    gpu_ok(vkattn_mapped_create(context, workspace.size, &b.workspace));
    b.buffers.workspace = whole(&b.workspace, workspace.size);
    copy_tensors(&b, c, 0, true);
    return b;
}

void gpu_buffers_free(vkattn_context *context, struct gpu_buffers *b)
{
    for (int id = 0; id < GPU_TENSORS; id++)
        vkattn_mapped_destroy(context, &b->tensors[id]);
    vkattn_mapped_destroy(context, &b->workspace);
}

struct recording {
    const vkattn_plan *plan;
    const vkattn_buffers *buffers;
    const vkattn_lengths *lengths;
};

static vkattn_status record(void *user, VkCommandBuffer cmd)
{
    const struct recording *r = user;
    return vkattn_record(r->plan, cmd, r->buffers, r->lengths);
}

vkattn_status gpu_run(vkattn_context *context, const vkattn_plan *plan, const vkattn_buffers *buffers,
                      const vkattn_lengths *lengths)
{
    struct recording r = {plan, buffers, lengths};
    return vkattn_run(context, record, &r, NULL);
}

uint32_t gpu_memory_type(const vkattn_context *context, uint32_t allowed)
{
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (uint32_t i = 0; i < context->memory.memoryTypeCount; i++)
        if ((allowed >> i & 1) && (context->memory.memoryTypes[i].propertyFlags & host) == host)
            return i;
    cr_assert_fail("no memory type of 0x%x is for the host", allowed);
    return 0;
}

/* A plan into a command buffer. Nothing here allocates, compiles, submits or waits. */
#include "vk.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(vka_params) <= PARAMS_SIZE, "the parameter block fits the head of the workspace");
_Static_assert(sizeof(vka_params) % 4 == 0, "vkCmdUpdateBuffer takes whole words");
_Static_assert(sizeof(vka_push) <= 64, "push constants stay within half of what every device has");

/* One call: the public structs, checked and resolved. */
struct call {
    const struct plan *plan;
    vkattn_device *device;
    vkattn_lengths lengths;
    vkattn_buffer workspace;
    vkattn_buffer tensors[TENSOR_COUNT]; /* size 0: unused or empty */
    vka_params params;
    bool other_step; /* the plan's mid_word instead of its forward step */
};

static const size_t buffer_offsets[TENSOR_PUBLIC_COUNT] = {
    [TENSOR_Q] = offsetof(vkattn_buffers, q),
    [TENSOR_K] = offsetof(vkattn_buffers, k),
    [TENSOR_V] = offsetof(vkattn_buffers, v),
    [TENSOR_O] = offsetof(vkattn_buffers, o),
    [TENSOR_LSE] = offsetof(vkattn_buffers, lse),
    [TENSOR_WEIGHTS] = offsetof(vkattn_buffers, weights),
    [TENSOR_MASK] = offsetof(vkattn_buffers, mask),
    [TENSOR_BIAS] = offsetof(vkattn_buffers, bias),
    [TENSOR_ALIBI] = offsetof(vkattn_buffers, alibi),
    [TENSOR_SINKS] = offsetof(vkattn_buffers, sinks),
    [TENSOR_KV_LENGTHS] = offsetof(vkattn_buffers, kv_lengths),
    [TENSOR_Q_LENGTHS] = offsetof(vkattn_buffers, q_lengths),
    [TENSOR_PREFIX] = offsetof(vkattn_buffers, prefix),
    [TENSOR_Q_SEGMENTS] = offsetof(vkattn_buffers, q_segments),
    [TENSOR_KV_SEGMENTS] = offsetof(vkattn_buffers, kv_segments),
};

static VkDeviceAddress address_of(const vkattn_device *device, const vkattn_buffer *buffer)
{
    const VkBufferDeviceAddressInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                            .buffer = buffer->buffer};
    const VkDeviceAddress base =
        buffer->address ? buffer->address : device->vk.vkGetBufferDeviceAddressKHR(device->info.device, &info);
    return base + buffer->offset;
}

/* The part of a tensor's offset that a binding's alignment leaves over. */
static VkDeviceSize offset_rest(const vkattn_device *device, const vkattn_buffer *buffer)
{
    return buffer->offset % device->caps.offset_alignment;
}

static vkattn_status check_workspace(const struct call *call)
{
    const struct plan *plan = call->plan;
    const vkattn_buffer *w = &call->workspace;
    const VkDeviceSize alignment = vkattn_workspace_alignment(&call->device->caps);
    REQUIRE(w->buffer, "buffers.workspace.buffer is VK_NULL_HANDLE: vkCmdUpdateBuffer needs it");
    REQUIRE(w->size >= plan->workspace_size, "buffers.workspace.size is %" PRIu64 ": the plan needs %" PRIu64, w->size,
            plan->workspace_size);
    REQUIRE(w->offset % alignment == 0, "buffers.workspace.offset is %" PRIu64 ": must be a multiple of %" PRIu64,
            w->offset, alignment);
    return VKATTN_OK;
}

/* The caller's buffer, or the library's own part of the workspace. */
static vkattn_buffer given_buffer(const struct call *call, enum tensor_id id, const vkattn_buffers *buffers)
{
    const uint64_t own = call->plan->workspace_offset[id];
    vkattn_buffer given = call->workspace;
    given.offset += own;
    given.size -= own;
    if (own == 0)
        memcpy(&given, (const char *)buffers + buffer_offsets[id], sizeof given);
    return given;
}

static vkattn_status resolve_tensor(struct call *call, enum tensor_id id, const vkattn_buffers *buffers)
{
    const struct problem *p = &call->plan->problem;
    const char *name = p->names[id];
    vkattn_buffer *out = &call->tensors[id];
    uint64_t bits = 0;
    *out = (vkattn_buffer){0};
    REQUIRE(vkattn_tensor_extent(p, id, &call->lengths, &bits), "%s spans more than 2^64 bits", name);
    if (bits == 0)
        return VKATTN_OK;
    const vkattn_buffer given = given_buffer(call, id, buffers);
    const uint64_t bytes = bits / 8 + (bits % 8 != 0);
    const uint32_t element = p->tensors[id].bits > 8 ? p->tensors[id].bits / 8 : 1;
    REQUIRE(given.buffer || (call->plan->addresses && given.address), "buffers.%s.buffer is VK_NULL_HANDLE", name);
    REQUIRE(given.size >= bytes, "buffers.%s.size is %" PRIu64 ": the tensor spans %" PRIu64 " bytes", name, given.size,
            bytes);
    REQUIRE(given.offset % element == 0, "buffers.%s.offset is %" PRIu64 ": must be a multiple of %" PRIu32, name,
            given.offset, element);
    *out = given;
    out->size = bytes;
    return VKATTN_OK;
}

/* Whole words around the tensor, from an offset that a binding may have. */
static VkDeviceSize bound_range(const vkattn_device *device, const vkattn_buffer *b)
{
    return (offset_rest(device, b) + b->size + 3) / 4 * 4;
}

static vkattn_status resolve_address(struct call *call, enum tensor_id id)
{
    const vkattn_buffer *b = &call->tensors[id];
    VKA_U64 *address = &call->params.tensors[id].address;
    if (call->plan->addresses) {
        *address = address_of(call->device, b->size ? b : &call->workspace);
        return VKATTN_OK;
    }
    *address = offset_rest(call->device, b);
    if (bound_range(call->device, b) > call->device->caps.max_range)
        return vkattn_fail(VKATTN_UNSUPPORTED,
                           "%s needs a binding of %" PRIu64 " bytes; maxStorageBufferRange is %" PRIu64,
                           call->plan->problem.names[id], bound_range(call->device, b), call->device->caps.max_range);
    return VKATTN_OK;
}

static vkattn_status resolve(struct call *call, const vkattn_buffers *buffers, const vkattn_lengths *lengths)
{
    TRY(vkattn_problem_lengths(&call->plan->problem, lengths, &call->lengths));
    call->workspace = buffers->workspace;
    TRY(check_workspace(call));
    vkattn_plan_params(call->plan, &call->lengths, &call->params);
    for (int id = 0; id < TENSOR_COUNT; id++) {
        TRY(resolve_tensor(call, (enum tensor_id)id, buffers));
        TRY(resolve_address(call, (enum tensor_id)id));
    }
    return VKATTN_OK;
}

/* Whether the forward step reads words of a K or V that starts in mid-word. Strides that would put a row there are
 * known to the plan. */
static bool needs_other_step(const struct call *call)
{
    const bool mid_word = (call->params.tensors[TENSOR_K].address | call->params.tensors[TENSOR_V].address) % 4 != 0;
    return mid_word && call->plan->needs_words;
}

/* Step i of this call. */
static const struct step *step_of(const struct call *call, uint32_t i)
{
    const struct step *step = &call->plan->steps[i];
    return call->other_step && step == vkattn_forward_step(call->plan) ? &call->plan->mid_word : step;
}

static vkattn_status check_start(struct call *call)
{
    call->other_step = needs_other_step(call);
    if (call->other_step && !call->plan->mid_word.kernel)
        return vkattn_fail(VKATTN_UNSUPPORTED,
                           "buffers.k.offset or buffers.v.offset is in the middle of a word, which the planned kernel "
                           "cannot read: set options.mid_word_starts");
    return VKATTN_OK;
}

static vkattn_status check_groups(const struct call *call)
{
    for (uint32_t i = 0; i < call->plan->step_count; i++) {
        const struct step *step = step_of(call, i);
        const uint64_t groups = vkattn_step_groups(call->plan, step, &call->lengths);
        if (groups > UINT32_MAX)
            return vkattn_fail(VKATTN_UNSUPPORTED, "%s would need %" PRIu64 " work groups; 2^32 - 1 can be counted",
                               step->kernel->name, groups);
    }
    return VKATTN_OK;
}

static void barrier(const struct call *call, VkCommandBuffer cmd, VkPipelineStageFlags from, VkAccessFlags written,
                    VkPipelineStageFlags to, VkAccessFlags used)
{
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = used};
    call->device->vk.vkCmdPipelineBarrier(cmd, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

/* Every binding that a module names is bound to something valid, used or not: the workspace stands in. */
static void push_descriptors(const struct call *call, VkCommandBuffer cmd)
{
    VkDescriptorBufferInfo infos[TENSOR_COUNT + 1];
    VkWriteDescriptorSet writes[TENSOR_COUNT + 1];
    infos[0] = (VkDescriptorBufferInfo){call->workspace.buffer, call->workspace.offset, PARAMS_SIZE};
    for (int id = 0; id < TENSOR_COUNT; id++) {
        const vkattn_buffer *b = &call->tensors[id];
        infos[id + 1] = infos[0];
        if (b->size)
            infos[id + 1] = (VkDescriptorBufferInfo){b->buffer, b->offset - offset_rest(call->device, b),
                                                     bound_range(call->device, b)};
    }
    for (uint32_t i = 0; i < TENSOR_COUNT + 1; i++)
        writes[i] = (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                           .dstBinding = i,
                                           .descriptorCount = 1,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .pBufferInfo = &infos[i]};
    call->device->vk.vkCmdPushDescriptorSetKHR(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, call->device->layouts[0], 0,
                                               TENSOR_COUNT + 1, writes);
}

static void write_params(const struct call *call, VkCommandBuffer cmd)
{
    /* An earlier recording may still read this workspace, or write its LSE. */
    barrier(call, cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_TRANSFER_WRITE_BIT);
    call->device->vk.vkCmdUpdateBuffer(cmd, call->workspace.buffer, call->workspace.offset, sizeof call->params,
                                       &call->params);
    barrier(call, cmd, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

/* The most work groups that one dispatch of a step may hold. */
static uint64_t groups_at_once(const struct call *call, const struct step *step)
{
    const struct caps *caps = &call->device->caps;
    const uint64_t fits = (uint64_t)caps->max_groups_x * caps->max_groups_y;
    if (call->plan->max_work == 0)
        return fits;
    const uint64_t group_work = (uint64_t)step->group_rows * (call->lengths.len_kv ? call->lengths.len_kv : 1);
    const uint64_t groups = call->plan->max_work / group_work;
    return groups < 1 ? 1 : groups < fits ? groups : fits;
}

static void dispatch(const struct call *call, VkCommandBuffer cmd, vka_push *push)
{
    const struct vk_table *vk = &call->device->vk;
    const uint32_t most_x = call->device->caps.max_groups_x;
    const uint32_t x = push->count < most_x ? push->count : most_x;
    vk->vkCmdPushConstants(cmd, call->device->layouts[call->plan->addresses], VK_SHADER_STAGE_COMPUTE_BIT, 0,
                           sizeof *push, push);
    vk->vkCmdDispatch(cmd, x, push->count / x + (push->count % x != 0), 1);
}

static void after_dispatch(const struct call *call, VkCommandBuffer cmd)
{
    barrier(call, cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

/* The dispatches of a cut step touch rows of their own, and need no barrier. It is there since the bindings do not show
 * that: synchronisation validation sees one dispatch write what the next reads. */
static void run_step(const struct call *call, VkCommandBuffer cmd, const struct step *step, VkPipeline pipeline)
{
    const uint64_t groups = vkattn_step_groups(call->plan, step, &call->lengths);
    const uint64_t at_once = groups_at_once(call, step);
    vka_push push = {.params = call->plan->addresses ? address_of(call->device, &call->workspace) : 0,
                     .row_blocks = (uint32_t)vkattn_step_blocks(call->plan, step, &call->lengths)};
    call->device->vk.vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    for (uint64_t first = 0; first < groups; first += push.count) {
        push.first = (uint32_t)first;
        push.count = (uint32_t)(groups - first < at_once ? groups - first : at_once);
        if (first > 0)
            after_dispatch(call, cmd);
        dispatch(call, cmd, &push);
    }
}

static vkattn_status record_call(const vkattn_plan *plan, VkCommandBuffer cmd, const vkattn_buffers *buffers,
                                 const vkattn_lengths *lengths)
{
    struct call call = {.plan = &plan->plan, .device = plan->device};
    TRY(resolve(&call, buffers, lengths));
    TRY(check_start(&call));
    TRY(check_groups(&call));
    if (call.lengths.len_q == 0)
        return VKATTN_OK;

    write_params(&call, cmd);
    if (!call.plan->addresses)
        push_descriptors(&call, cmd);
    for (uint32_t i = 0; i < call.plan->step_count; i++) {
        const struct step *step = step_of(&call, i);
        if (call.other_step && step->kernel->role == ROLE_COMBINE)
            continue; /* the other step cuts no keys */
        if (i > 0)
            after_dispatch(&call, cmd);
        run_step(&call, cmd, step, step == &call.plan->mid_word ? plan->mid_word : plan->pipelines[i]);
    }
    return VKATTN_OK;
}

vkattn_status vkattn_record_sized(const vkattn_plan *plan, VkCommandBuffer cmd, const vkattn_buffers *buffers,
                                  size_t buffers_size, const vkattn_lengths *lengths)
{
    REQUIRE(plan, "plan is NULL");
    REQUIRE(cmd, "cmd is VK_NULL_HANDLE");
    REQUIRE(!plan->plan.problem.merge, "plan is a merge's: vkattn_record_merge records it");
    vkattn_buffers copy;
    TRY(vkattn_copy_sized(&copy, sizeof copy, buffers, buffers_size, "buffers"));
    return record_call(plan, cmd, &copy, lengths);
}

vkattn_status vkattn_record_merge_sized(const vkattn_plan *plan, VkCommandBuffer cmd,
                                        const vkattn_merge_buffers *buffers, size_t buffers_size,
                                        const vkattn_lengths *lengths)
{
    REQUIRE(plan, "plan is NULL");
    REQUIRE(cmd, "cmd is VK_NULL_HANDLE");
    REQUIRE(plan->plan.problem.merge, "plan is an attention's: vkattn_record records it");
    vkattn_merge_buffers b;
    TRY(vkattn_copy_sized(&b, sizeof b, buffers, buffers_size, "buffers"));
    const vkattn_buffers placed = {.k = b.first_o,
                                   .v = b.second_o,
                                   .q = b.first_lse,
                                   .weights = b.second_lse,
                                   .o = b.o,
                                   .lse = b.lse,
                                   .workspace = b.workspace};
    return record_call(plan, cmd, &placed, lengths);
}

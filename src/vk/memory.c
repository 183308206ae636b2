/* The synchronous call on host memory: one buffer per tensor, copied through staging where the device's memory is not
 * the host's. The only place where the library allocates device memory, submits and waits. */
#include "vk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct block {
    VkBuffer buffer;
    VkDeviceMemory memory;
    void *mapped; /* NULL: not visible to the host */
    VkDeviceSize size;
};

/* One call; zero-initialised, so that it can be torn down at any point. */
struct job {
    vkattn_device *device;
    VkQueue queue;
    vkattn_plan *plan;
    vkattn_lengths lengths;
    VkPhysicalDeviceMemoryProperties types;
    struct block tensors[TENSOR_PUBLIC_COUNT];
    struct block staging[TENSOR_PUBLIC_COUNT]; /* only where the tensor's own block is not mapped */
    struct block workspace;
    VkCommandPool pool;
    VkCommandBuffer cmd;
    VkFence fence;
};

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

static uint32_t find_type(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed, VkMemoryPropertyFlags flags)
{
    for (uint32_t i = 0; i < types->memoryTypeCount; i++)
        if ((allowed >> i & 1) && (types->memoryTypes[i].propertyFlags & flags) == flags)
            return i;
    return UINT32_MAX;
}

/* The first of some wishes that a memory type meets. */
static uint32_t choose_type(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed, bool for_host)
{
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags device = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags wishes[2][3] = {{host | device | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, device, 0},
                                                {host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, host, host}};
    for (int i = 0; i < 3; i++) {
        const uint32_t type = find_type(types, allowed, wishes[for_host][i]);
        if (type != UINT32_MAX)
            return type;
    }
    return UINT32_MAX;
}

static vkattn_status allocate(const struct job *job, VkBufferUsageFlags usage, bool for_host, struct block *block)
{
    const struct vk_table *vk = &job->device->vk;
    const VkDevice device = job->device->info.device;
    const VkAllocationCallbacks *allocator = job->device->info.allocator;
    VkMemoryRequirements needs;
    vk->vkGetBufferMemoryRequirements(device, block->buffer, &needs);
    const uint32_t type = choose_type(&job->types, needs.memoryTypeBits, for_host);
    if (type == UINT32_MAX)
        return vkattn_fail(VKATTN_UNSUPPORTED, "the device has no memory type that the host can map");
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const bool addressed = usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = addressed ? &flags : NULL,
                                       .allocationSize = needs.size,
                                       .memoryTypeIndex = type};
    TRY_VK(vk->vkAllocateMemory(device, &info, allocator, &block->memory));
    TRY_VK(vk->vkBindBufferMemory(device, block->buffer, block->memory, 0));
    const VkMemoryPropertyFlags mappable = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    if ((job->types.memoryTypes[type].propertyFlags & mappable) == mappable)
        TRY_VK(vk->vkMapMemory(device, block->memory, 0, VK_WHOLE_SIZE, 0, &block->mapped));
    return VKATTN_OK;
}

static vkattn_status create_block(const struct job *job, VkDeviceSize size, VkBufferUsageFlags usage, bool for_host,
                                  struct block *block)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = size, .usage = usage};
    block->size = size;
    TRY_VK(
        job->device->vk.vkCreateBuffer(job->device->info.device, &info, job->device->info.allocator, &block->buffer));
    return allocate(job, usage, for_host, block);
}

static void destroy_block(const struct job *job, struct block *block)
{
    const struct vk_table *vk = &job->device->vk;
    if (block->buffer)
        vk->vkDestroyBuffer(job->device->info.device, block->buffer, job->device->info.allocator);
    if (block->memory)
        vk->vkFreeMemory(job->device->info.device, block->memory, job->device->info.allocator);
}

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* Of a tensor that the caller hands over. */
static uint64_t tensor_bytes(const struct job *job, enum tensor_id id)
{
    uint64_t bits = 0;
    if (job->plan->plan.workspace_offset[id] != 0)
        return 0;
    if (!vkattn_tensor_extent(&job->plan->plan.problem, id, &job->lengths, &bits))
        return UINT64_MAX;
    return bits / 8 + (bits % 8 != 0);
}

static void *host_view(const struct job *job, enum tensor_id id)
{
    return job->tensors[id].mapped ? job->tensors[id].mapped : job->staging[id].mapped;
}

static vkattn_status check_tensors(const struct job *job, const vkattn_tensors *tensors)
{
    for (int id = 0; id < TENSOR_PUBLIC_COUNT; id++) {
        const void *pointer = vkattn_tensors_get(tensors, (enum tensor_id)id);
        const uint32_t bits = job->plan->plan.problem.tensors[id].bits;
        const uintptr_t element = bits > 8 ? bits / 8 : 1;
        if (tensor_bytes(job, (enum tensor_id)id) == 0)
            continue;
        REQUIRE(pointer, "tensors.%s is NULL", vkattn_tensor_names[id]);
        REQUIRE((uintptr_t)pointer % element == 0, "tensors.%s is %p: must be a multiple of %u bytes",
                vkattn_tensor_names[id], pointer, (unsigned)element);
    }
    return VKATTN_OK;
}

static vkattn_status create_tensor(struct job *job, enum tensor_id id, const void *data)
{
    const uint64_t bytes = tensor_bytes(job, id), words = (bytes + 3) / 4 * 4;
    if (bytes == 0)
        return VKATTN_OK;
    const VkBufferUsageFlags copies = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    TRY(create_block(job, words, vkattn_plan_usage(job->plan) | copies, false, &job->tensors[id]));
    if (!job->tensors[id].mapped)
        TRY(create_block(job, words, copies, true, &job->staging[id]));
    if (!job->plan->plan.problem.tensors[id].output)
        memcpy(host_view(job, id), data, bytes);
    return VKATTN_OK;
}

static void copy_rows(const struct tensor *t, uint64_t batch, void *to, const void *from)
{
    const size_t element = t->bits / 8, row = t->row_width * element;
    for (uint64_t b = 0; b < batch; b++)
        for (uint64_t h = 0; h < t->heads; h++)
            for (uint64_t r = 0; r < t->rows; r++) {
                const size_t at = (size_t)(b * t->batch_stride + h * t->head_stride + r * t->row_stride) * element;
                memcpy((char *)to + at, (const char *)from + at, row);
            }
}

static void fetch_outputs(const struct job *job, const vkattn_tensors *tensors)
{
    const enum tensor_id outputs[] = {TENSOR_O, TENSOR_LSE, TENSOR_WEIGHTS};
    void *const targets[] = {tensors->o, tensors->lse, tensors->weights};
    for (int i = 0; i < 3; i++) {
        const struct tensor t = vkattn_tensor_of(&job->plan->plan.problem, outputs[i], &job->lengths);
        if (tensor_bytes(job, outputs[i]) != 0)
            copy_rows(&t, job->plan->plan.problem.batch, targets[i], host_view(job, outputs[i]));
    }
}

/* ---- Recording and waiting ------------------------------------------------------------------------------------- */

static void copy_staged(const struct job *job, bool outputs)
{
    for (int id = 0; id < TENSOR_PUBLIC_COUNT; id++) {
        const struct block *staging = &job->staging[id];
        if (!staging->buffer || job->plan->plan.problem.tensors[id].output != outputs)
            continue;
        const VkBufferCopy region = {.size = staging->size};
        const VkBuffer tensor = job->tensors[id].buffer;
        job->device->vk.vkCmdCopyBuffer(job->cmd, outputs ? tensor : staging->buffer,
                                        outputs ? staging->buffer : tensor, 1, &region);
    }
}

static void job_barrier(const struct job *job, VkPipelineStageFlags from, VkAccessFlags written,
                        VkPipelineStageFlags to, VkAccessFlags used)
{
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = used};
    job->device->vk.vkCmdPipelineBarrier(job->cmd, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

static vkattn_buffer whole(const struct block *block)
{
    return (vkattn_buffer){.buffer = block->buffer, .size = block->size};
}

static vkattn_status record_plan(const struct job *job)
{
    const struct block *t = job->tensors;
    const vkattn_buffers buffers = {
        .q = whole(&t[TENSOR_Q]),
        .k = whole(&t[TENSOR_K]),
        .v = whole(&t[TENSOR_V]),
        .o = whole(&t[TENSOR_O]),
        .lse = whole(&t[TENSOR_LSE]),
        .weights = whole(&t[TENSOR_WEIGHTS]),
        .mask = whole(&t[TENSOR_MASK]),
        .bias = whole(&t[TENSOR_BIAS]),
        .alibi = whole(&t[TENSOR_ALIBI]),
        .sinks = whole(&t[TENSOR_SINKS]),
        .kv_lengths = whole(&t[TENSOR_KV_LENGTHS]),
        .q_lengths = whole(&t[TENSOR_Q_LENGTHS]),
        .prefix = whole(&t[TENSOR_PREFIX]),
        .q_segments = whole(&t[TENSOR_Q_SEGMENTS]),
        .kv_segments = whole(&t[TENSOR_KV_SEGMENTS]),
        .workspace = whole(&job->workspace),
    };
    return vkattn_record(job->plan, job->cmd, &buffers, &job->lengths);
}

static vkattn_status record_job(struct job *job)
{
    const struct vk_table *vk = &job->device->vk;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = job->device->info.queue_family};
    TRY_VK(vk->vkCreateCommandPool(job->device->info.device, &pool, job->device->info.allocator, &job->pool));
    const VkCommandBufferAllocateInfo buffer = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = job->pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
    TRY_VK(vk->vkAllocateCommandBuffers(job->device->info.device, &buffer, &job->cmd));
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    TRY_VK(vk->vkBeginCommandBuffer(job->cmd, &begin));
    copy_staged(job, false);
    job_barrier(job, VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_HOST_BIT,
                VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                VK_ACCESS_SHADER_READ_BIT);
    TRY(record_plan(job));
    job_barrier(job, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_HOST_BIT,
                VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_HOST_READ_BIT);
    copy_staged(job, true);
    job_barrier(job, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT,
                VK_ACCESS_HOST_READ_BIT);
    TRY_VK(vk->vkEndCommandBuffer(job->cmd));
    return VKATTN_OK;
}

static vkattn_status submit_and_wait(struct job *job)
{
    const struct vk_table *vk = &job->device->vk;
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    TRY_VK(vk->vkCreateFence(job->device->info.device, &fence, job->device->info.allocator, &job->fence));
    const VkSubmitInfo submit = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &job->cmd};
    vkattn_lock(&job->device->queue_lock);
    const VkResult result = vk->vkQueueSubmit(job->queue, 1, &submit, job->fence);
    vkattn_unlock(&job->device->queue_lock);
    TRY(vkattn_vk_status(result, "vkQueueSubmit"));
    TRY_VK(vk->vkWaitForFences(job->device->info.device, 1, &job->fence, VK_TRUE, UINT64_MAX));
    return VKATTN_OK;
}

static vkattn_status run_job(struct job *job, const vkattn_tensors *tensors)
{
    job->device->vk.vkGetPhysicalDeviceMemoryProperties(job->device->info.physical_device, &job->types);
    TRY(check_tensors(job, tensors));
    for (int id = 0; id < TENSOR_PUBLIC_COUNT; id++)
        TRY(create_tensor(job, (enum tensor_id)id, vkattn_tensors_get(tensors, (enum tensor_id)id)));
    const vkattn_workspace workspace = vkattn_plan_workspace(job->plan);
    TRY(create_block(job, workspace.size, workspace.usage, false, &job->workspace));
    TRY(record_job(job));
    TRY(submit_and_wait(job));
    fetch_outputs(job, tensors);
    return VKATTN_OK;
}

static void end_job(struct job *job)
{
    const struct vk_table *vk = &job->device->vk;
    if (job->fence)
        vk->vkDestroyFence(job->device->info.device, job->fence, job->device->info.allocator);
    if (job->pool)
        vk->vkDestroyCommandPool(job->device->info.device, job->pool, job->device->info.allocator);
    for (int id = 0; id < TENSOR_PUBLIC_COUNT; id++) {
        destroy_block(job, &job->tensors[id]);
        destroy_block(job, &job->staging[id]);
    }
    destroy_block(job, &job->workspace);
    vkattn_plan_destroy(job->plan);
}

vkattn_status vkattn_attend_sized(vkattn_device *device, const vkattn_problem *problem, size_t problem_size,
                                  const vkattn_options *options, size_t options_size, const vkattn_tensors *tensors,
                                  size_t tensors_size, const vkattn_lengths *lengths)
{
    REQUIRE(device, "device is NULL");
    REQUIRE(device->info.queue, "the device was created without a queue, which vkattn_attend needs");
    vkattn_tensors copy;
    TRY(vkattn_copy_sized(&copy, sizeof copy, tensors, tensors_size, "tensors"));
    struct job job = {.device = device, .queue = device->info.queue};
    TRY(vkattn_plan_create_sized(device, problem, problem_size, options, options_size, &job.plan));
    vkattn_status status = vkattn_problem_lengths(&job.plan->plan.problem, lengths, &job.lengths);
    if (status == VKATTN_OK)
        status = run_job(&job, &copy);
    end_job(&job);
    return status;
}

vkattn_status vkattn_attend_on(vkattn_device *device, VkQueue queue, const vkattn_problem *problem,
                               const vkattn_options *options, const vkattn_tensors *tensors)
{
    struct job job = {.device = device, .queue = queue};
    TRY(vkattn_plan_create(device, problem, options, &job.plan));
    vkattn_status status = vkattn_problem_lengths(&job.plan->plan.problem, NULL, &job.lengths);
    if (status == VKATTN_OK)
        status = run_job(&job, tensors);
    end_job(&job);
    return status;
}

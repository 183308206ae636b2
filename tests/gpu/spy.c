#include "spy.h"

#include <string.h>

struct spy spy;

void spy_reset(void)
{
    memset(&spy, 0, sizeof spy);
}

/* Whether this call is the one that fails. */
static int fails(void)
{
    return ++spy.fallible == spy.fail_at;
}

/* ---- What creates and destroys --------------------------------------------------------------------------------- */

#define CREATE(Object)                                                                                                \
    static VKAPI_ATTR VkResult VKAPI_CALL spy_vkCreate##Object(                                                       \
        VkDevice device, const Vk##Object##CreateInfo *info, const VkAllocationCallbacks *allocator, Vk##Object *out) \
    {                                                                                                                 \
        if (fails())                                                                                                  \
            return spy.result;                                                                                        \
        const VkResult result = vkCreate##Object(device, info, allocator, out);                                       \
        spy.live += result == VK_SUCCESS;                                                                             \
        return result;                                                                                                \
    }

#define DESTROY(Object)                                                                             \
    static VKAPI_ATTR void VKAPI_CALL spy_vkDestroy##Object(VkDevice device, Vk##Object object,     \
                                                            const VkAllocationCallbacks *allocator) \
    {                                                                                               \
        spy.live -= object != VK_NULL_HANDLE;                                                       \
        vkDestroy##Object(device, object, allocator);                                               \
    }

CREATE(DescriptorSetLayout)
DESTROY(DescriptorSetLayout)
CREATE(PipelineLayout)
DESTROY(PipelineLayout)
CREATE(ShaderModule)
DESTROY(ShaderModule)
CREATE(Buffer)
DESTROY(Buffer)
CREATE(CommandPool)
DESTROY(CommandPool)
CREATE(Fence)
DESTROY(Fence)
DESTROY(Pipeline)

static VKAPI_ATTR VkResult VKAPI_CALL spy_vkCreateComputePipelines(VkDevice device, VkPipelineCache cache,
                                                                   uint32_t count,
                                                                   const VkComputePipelineCreateInfo *infos,
                                                                   const VkAllocationCallbacks *allocator,
                                                                   VkPipeline *out)
{
    spy.pipelines++;
    spy.cache = cache;
    if (fails())
        return spy.result;
    const VkResult result = vkCreateComputePipelines(device, cache, count, infos, allocator, out);
    spy.live += result == VK_SUCCESS ? (int)count : 0;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL spy_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
                                                           const VkAllocationCallbacks *allocator, VkDeviceMemory *out)
{
    if (fails())
        return spy.result;
    const VkResult result = vkAllocateMemory(device, info, allocator, out);
    spy.live += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL spy_vkFreeMemory(VkDevice device, VkDeviceMemory memory,
                                                   const VkAllocationCallbacks *allocator)
{
    spy.live -= memory != VK_NULL_HANDLE;
    vkFreeMemory(device, memory, allocator);
}

/* ---- What else may fail ---------------------------------------------------------------------------------------- */

#define FALLIBLE(name, parameters, arguments)                   \
    static VKAPI_ATTR VkResult VKAPI_CALL spy_##name parameters \
    {                                                           \
        return fails() ? spy.result : name arguments;           \
    }

FALLIBLE(vkBindBufferMemory, (VkDevice d, VkBuffer b, VkDeviceMemory m, VkDeviceSize o), (d, b, m, o))
FALLIBLE(vkMapMemory, (VkDevice d, VkDeviceMemory m, VkDeviceSize o, VkDeviceSize s, VkMemoryMapFlags f, void **p),
         (d, m, o, s, f, p))
FALLIBLE(vkAllocateCommandBuffers, (VkDevice d, const VkCommandBufferAllocateInfo *i, VkCommandBuffer *c), (d, i, c))
FALLIBLE(vkBeginCommandBuffer, (VkCommandBuffer c, const VkCommandBufferBeginInfo *i), (c, i))
FALLIBLE(vkEndCommandBuffer, (VkCommandBuffer c), (c))
FALLIBLE(vkQueueSubmit, (VkQueue q, uint32_t n, const VkSubmitInfo *s, VkFence f), (q, n, s, f))

/* Waits also when it fails: what was submitted is about to be destroyed. */
static VKAPI_ATTR VkResult VKAPI_CALL spy_vkWaitForFences(VkDevice device, uint32_t count, const VkFence *fences,
                                                          VkBool32 all, uint64_t timeout)
{
    const VkResult result = vkWaitForFences(device, count, fences, all, timeout);
    return fails() ? spy.result : result;
}

/* ---- Commands -------------------------------------------------------------------------------------------------- */

#define COMMAND(name, parameters, arguments)                \
    static VKAPI_ATTR void VKAPI_CALL spy_##name parameters \
    {                                                       \
        spy.commands++;                                     \
        name arguments;                                     \
    }

COMMAND(vkCmdBindPipeline, (VkCommandBuffer c, VkPipelineBindPoint b, VkPipeline p), (c, b, p))
COMMAND(vkCmdPushConstants,
        (VkCommandBuffer c, VkPipelineLayout l, VkShaderStageFlags f, uint32_t o, uint32_t s, const void *v),
        (c, l, f, o, s, v))
COMMAND(vkCmdUpdateBuffer, (VkCommandBuffer c, VkBuffer b, VkDeviceSize o, VkDeviceSize s, const void *d),
        (c, b, o, s, d))
COMMAND(vkCmdCopyBuffer, (VkCommandBuffer c, VkBuffer f, VkBuffer t, uint32_t n, const VkBufferCopy *r),
        (c, f, t, n, r))
COMMAND(vkCmdPipelineBarrier,
        (VkCommandBuffer c, VkPipelineStageFlags f, VkPipelineStageFlags t, VkDependencyFlags d, uint32_t nm,
         const VkMemoryBarrier *m, uint32_t nb, const VkBufferMemoryBarrier *b, uint32_t ni,
         const VkImageMemoryBarrier *i),
        (c, f, t, d, nm, m, nb, b, ni, i))
COMMAND(vkCmdPushDescriptorSetKHR,
        (VkCommandBuffer c, VkPipelineBindPoint b, VkPipelineLayout l, uint32_t s, uint32_t n,
         const VkWriteDescriptorSet *w),
        (c, b, l, s, n, w))

static VKAPI_ATTR void VKAPI_CALL spy_vkCmdDispatch(VkCommandBuffer cmd, uint32_t x, uint32_t y, uint32_t z)
{
    spy.commands++;
    spy.dispatches++;
    vkCmdDispatch(cmd, x, y, z);
}

/* ---- Functions by name ----------------------------------------------------------------------------------------- */

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL spy_vkGetDeviceProcAddr(VkDevice device, const char *name);

#define ENTRY(name)                           \
    {                                         \
#name, (PFN_vkVoidFunction)spy_##name \
    }
static const struct {
    const char *name;
    PFN_vkVoidFunction function;
} entries[] = {
    ENTRY(vkGetDeviceProcAddr),
    ENTRY(vkCreateDescriptorSetLayout),
    ENTRY(vkDestroyDescriptorSetLayout),
    ENTRY(vkCreatePipelineLayout),
    ENTRY(vkDestroyPipelineLayout),
    ENTRY(vkCreateShaderModule),
    ENTRY(vkDestroyShaderModule),
    ENTRY(vkCreateComputePipelines),
    ENTRY(vkDestroyPipeline),
    ENTRY(vkCreateBuffer),
    ENTRY(vkDestroyBuffer),
    ENTRY(vkAllocateMemory),
    ENTRY(vkFreeMemory),
    ENTRY(vkBindBufferMemory),
    ENTRY(vkMapMemory),
    ENTRY(vkCreateCommandPool),
    ENTRY(vkDestroyCommandPool),
    ENTRY(vkAllocateCommandBuffers),
    ENTRY(vkBeginCommandBuffer),
    ENTRY(vkEndCommandBuffer),
    ENTRY(vkCreateFence),
    ENTRY(vkDestroyFence),
    ENTRY(vkQueueSubmit),
    ENTRY(vkWaitForFences),
    ENTRY(vkCmdBindPipeline),
    ENTRY(vkCmdPushConstants),
    ENTRY(vkCmdDispatch),
    ENTRY(vkCmdUpdateBuffer),
    ENTRY(vkCmdCopyBuffer),
    ENTRY(vkCmdPipelineBarrier),
    ENTRY(vkCmdPushDescriptorSetKHR),
};

/* The spy's own function where there is one and `real` exists, too. */
static PFN_vkVoidFunction choose(const char *name, PFN_vkVoidFunction real)
{
    if (spy.hidden && strcmp(name, spy.hidden) == 0)
        return NULL;
    for (size_t i = 0; real && i < sizeof entries / sizeof *entries; i++)
        if (strcmp(name, entries[i].name) == 0)
            return entries[i].function;
    return real;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL spy_vkGetDeviceProcAddr(VkDevice device, const char *name)
{
    return choose(name, vkGetDeviceProcAddr(device, name));
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL spy_get_instance_proc_addr(VkInstance instance, const char *name)
{
    return choose(name, vkGetInstanceProcAddr(instance, name));
}

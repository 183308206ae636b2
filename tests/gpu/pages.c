#include "pages.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    BUFFER_USAGE = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                   VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
};

static bool has_extension(VkPhysicalDevice physical, const char *name)
{
    VkExtensionProperties extensions[512];
    uint32_t count = sizeof extensions / sizeof *extensions;
    if (vkEnumerateDeviceExtensionProperties(physical, NULL, &count, extensions) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(extensions[i].extensionName, name) == 0)
            return true;
    return false;
}

static size_t import_alignment(VkPhysicalDevice physical)
{
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &host};
    vkGetPhysicalDeviceProperties2(physical, &properties);
    return (size_t)host.minImportedHostPointerAlignment;
}

static VkDevice create_device(const vkattn_context *context, const vkattn_device_wants *wants)
{
    const char *extensions[9];
    uint32_t count = 0;
    for (; count < wants->extension_count; count++)
        extensions[count] = wants->extensions[count];
    extensions[count++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = context->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &wants->features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = count,
                                     .ppEnabledExtensionNames = extensions};
    VkDevice device;
    GPU_VK(vkCreateDevice(context->physical_device, &info, NULL, &device));
    return device;
}

struct pages_device pages_open(vkattn_context *context)
{
    if (!gpu_is_cpu(context))
        cr_skip_test("%s reads memory past the protection of pages", context->listed.name);
    if (!has_extension(context->physical_device, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME))
        cr_skip_test("%s has no VK_EXT_external_memory_host", context->listed.name);
    if (!context->enabled.buffer_device_address)
        cr_skip_test("%s has no buffer device addresses", context->listed.name);
    struct pages_device d = {.context = context, .page = (size_t)sysconf(_SC_PAGESIZE)};
    const size_t alignment = import_alignment(context->physical_device);
    d.page = alignment > d.page ? alignment : d.page;
    vkattn_device_wants wants;
    gpu_ok(
        vkattn_device_wants_get(context->get_instance_proc_addr, context->instance, context->physical_device, &wants));
    d.device = create_device(context, &wants);
    vkGetDeviceQueue(d.device, context->queue_family, 0, &d.queue);
    vkattn_device_info info = gpu_info(context);
    info.device = d.device;
    info.queue = d.queue;
    info.enabled = &wants.enabled;
    gpu_ok(vkattn_device_create(&info, &d.vkattn));
    return d;
}

void pages_close(struct pages_device *d)
{
    vkattn_device_destroy(d->vkattn);
    vkDestroyDevice(d->device, NULL);
}

/* SwiftShader imports and does not say so. */
static bool says_importable(const struct pages_device *d)
{
    const VkPhysicalDeviceExternalBufferInfo info = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                                     .usage = BUFFER_USAGE,
                                                     .handleType =
                                                         VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
    VkExternalBufferProperties properties = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    vkGetPhysicalDeviceExternalBufferProperties(d->context->physical_device, &info, &properties);
    return properties.externalMemoryProperties.externalMemoryFeatures & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
}

static VkBuffer create_buffer(const struct pages_device *d, size_t size)
{
    const VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                       .handleTypes =
                                                           VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &external, .size = size, .usage = BUFFER_USAGE};
    VkBuffer buffer;
    if (!says_importable(d))
        gpu_allow("VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT");
    GPU_VK(vkCreateBuffer(d->device, &info, NULL, &buffer));
    return buffer;
}

static VkDeviceMemory import_memory(const struct pages_device *d, const struct pages *p)
{
    const VkExternalMemoryHandleTypeFlagBits type = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    VkMemoryHostPointerPropertiesEXT pointer = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(d->device, p->buffer, &needs);
    GPU_VK(vkGetMemoryHostPointerPropertiesEXT(d->device, type, p->data, &pointer));
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkImportMemoryHostPointerInfoEXT import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                                     .pNext = &flags,
                                                     .handleType = type,
                                                     .pHostPointer = p->data};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &import,
                                       .allocationSize = p->size,
                                       .memoryTypeIndex =
                                           gpu_memory_type(d->context, needs.memoryTypeBits & pointer.memoryTypeBits)};
    VkDeviceMemory memory;
    GPU_VK(vkAllocateMemory(d->device, &info, NULL, &memory));
    return memory;
}

struct pages pages_import(const struct pages_device *d, void *data, size_t size)
{
    struct pages p = {.size = size, .data = data};
    p.buffer = create_buffer(d, size);
    p.memory = import_memory(d, &p);
    GPU_VK(vkBindBufferMemory(d->device, p.buffer, p.memory, 0));
    const VkBufferDeviceAddressInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = p.buffer};
    p.address = vkGetBufferDeviceAddress(d->device, &info);
    return p;
}

void pages_free(const struct pages_device *d, struct pages *p)
{
    vkDestroyBuffer(d->device, p->buffer, NULL);
    vkFreeMemory(d->device, p->memory, NULL);
    *p = (struct pages){0};
}

static VkCommandBuffer begin_commands(const struct pages_device *d, VkCommandPool *pool)
{
    const VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = d->context->queue_family};
    GPU_VK(vkCreateCommandPool(d->device, &info, NULL, pool));
    const VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = *pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkCommandBuffer cmd;
    GPU_VK(vkAllocateCommandBuffers(d->device, &allocate, &cmd));
    GPU_VK(vkBeginCommandBuffer(cmd, &begin));
    return cmd;
}

void pages_run(const struct pages_device *d, const vkattn_plan *plan, const vkattn_buffers *buffers,
               const vkattn_lengths *lengths, int times)
{
    VkCommandPool pool;
    const VkCommandBuffer cmd = begin_commands(d, &pool);
    gpu_ok(vkattn_record(plan, cmd, buffers, lengths));
    GPU_VK(vkEndCommandBuffer(cmd));
    const VkSubmitInfo submit = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &cmd};
    for (int i = 0; i < times; i++) {
        GPU_VK(vkQueueSubmit(d->queue, 1, &submit, VK_NULL_HANDLE));
        GPU_VK(vkQueueWaitIdle(d->queue));
    }
    vkDestroyCommandPool(d->device, pool, NULL);
}

char *pages_reserve(size_t size)
{
    void *space = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert(space != MAP_FAILED, "no address space of %zu bytes", size);
    return space;
}

/* An application with a VkDevice of its own: a small attention through vkattn_record. Vulkan's functions come from the
 * application's own volk, or from libvulkan itself; the library must get along with both. */
#ifdef CONSUMER_VOLK
#include <volk.h>
#else
#include <vulkan/vulkan.h>
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vkattn/vulkan.h>

static void check(int right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "consumer: %s: %s\n", what, vkattn_last_error());
    exit(1);
}

#define CHECK(call) check((call) == 0, #call) /* VK_SUCCESS and VKATTN_OK are 0 */

static VkInstance create_instance(void)
{
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    VkInstance instance;
#ifdef CONSUMER_VOLK
    CHECK(volkInitialize());
#endif
    CHECK(vkCreateInstance(&info, NULL, &instance));
#ifdef CONSUMER_VOLK
    volkLoadInstance(instance);
#endif
    return instance;
}

static VkPhysicalDevice first_device(VkInstance instance)
{
    VkPhysicalDevice physical;
    uint32_t count = 1;
    check(vkEnumeratePhysicalDevices(instance, &count, &physical) >= 0 && count == 1, "no Vulkan device");
    return physical;
}

/* What vkattn wants of the device, and nothing else. Queue family 0 computes on every driver of the tests. */
static VkDevice create_device(VkPhysicalDevice physical, const vkattn_device_wants *wants)
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
    CHECK(vkCreateDevice(physical, &info, NULL, &device));
    return device;
}

static uint32_t host_type(VkPhysicalDevice physical, uint32_t allowed)
{
    VkPhysicalDeviceMemoryProperties memory;
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++)
        if ((allowed >> i & 1) && (memory.memoryTypes[i].propertyFlags & host) == host)
            return i;
    check(0, "no memory for the host");
    return 0;
}

/* One buffer for all tensors and the workspace, mapped. */
struct arena {
    VkBuffer buffer;
    VkDeviceMemory memory;
    char *data;
};

static struct arena create_arena(VkPhysicalDevice physical, VkDevice device, VkDeviceSize size,
                                 VkBufferUsageFlags usage)
{
    struct arena a;
    void *data;
    VkMemoryRequirements needs;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = size, .usage = usage};
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    CHECK(vkCreateBuffer(device, &info, NULL, &a.buffer));
    vkGetBufferMemoryRequirements(device, a.buffer, &needs);
    const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                           .pNext = usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT ? &flags : NULL,
                                           .allocationSize = needs.size,
                                           .memoryTypeIndex = host_type(physical, needs.memoryTypeBits)};
    CHECK(vkAllocateMemory(device, &allocate, NULL, &a.memory));
    CHECK(vkBindBufferMemory(device, a.buffer, a.memory, 0));
    CHECK(vkMapMemory(device, a.memory, 0, VK_WHOLE_SIZE, 0, &data));
    a.data = data;
    return a;
}

static void submit(VkDevice device, VkQueue queue, const vkattn_plan *plan, const vkattn_buffers *buffers)
{
    VkCommandPool pool;
    VkCommandBuffer cmd;
    const VkCommandPoolCreateInfo pool_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    CHECK(vkCreateCommandPool(device, &pool_info, NULL, &pool));
    const VkCommandBufferAllocateInfo allocate = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    CHECK(vkAllocateCommandBuffers(device, &allocate, &cmd));
    CHECK(vkBeginCommandBuffer(cmd, &begin));
    CHECK(vkattn_record(plan, cmd, buffers, NULL));
    CHECK(vkEndCommandBuffer(cmd));
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &cmd};
    CHECK(vkQueueSubmit(queue, 1, &info, VK_NULL_HANDLE));
    CHECK(vkQueueWaitIdle(queue));
    vkDestroyCommandPool(device, pool, NULL);
}

/* softmax([1.75, -1, 1.25]), the published numbers of tests/unit/test_reference.c, seen through V = identity. */
static int attend(VkPhysicalDevice physical, VkDevice device, vkattn_device *vkattn)
{
    enum { SLOT = 1024 };
    const float q[4] = {1, -1, 2, 0.5f}, k[12] = {2, 0, 1, -1, 0, 1, -1, 2, 1, 1, 1, 1};
    const float v[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, expected[3] = {0.599f, 0.038f, 0.363f};
    const vkattn_problem problem = {.len_q = 1, .len_kv = 3, .dim_qk = 4, .dim_v = 3};
    vkattn_plan *plan;
    VkQueue queue;
    CHECK(vkattn_plan_create(vkattn, &problem, NULL, &plan));
    const vkattn_workspace workspace = vkattn_plan_workspace(plan);
    const struct arena a =
        create_arena(physical, device, 4 * SLOT + workspace.size, vkattn_plan_usage(plan) | workspace.usage);
    memcpy(a.data, q, sizeof q);
    memcpy(a.data + SLOT, k, sizeof k);
    memcpy(a.data + 2 * SLOT, v, sizeof v);
    const vkattn_buffers buffers = {
        .q = {.buffer = a.buffer, .size = sizeof q},
        .k = {.buffer = a.buffer, .offset = SLOT, .size = sizeof k},
        .v = {.buffer = a.buffer, .offset = 2 * SLOT, .size = sizeof v},
        .o = {.buffer = a.buffer, .offset = 3 * SLOT, .size = sizeof expected},
        .workspace = {.buffer = a.buffer, .offset = 4 * SLOT, .size = workspace.size},
    };
    vkGetDeviceQueue(device, 0, 0, &queue);
    submit(device, queue, plan, &buffers);
    int right = 1;
    for (int i = 0; i < 3; i++) {
        float o;
        memcpy(&o, a.data + 3 * SLOT + 4 * i, sizeof o);
        printf("%.3f ", (double)o);
        right = right && fabsf(o - expected[i]) < 0.001f;
    }
    printf("%s\n", right ? "as published" : "WRONG");
    vkDestroyBuffer(device, a.buffer, NULL);
    vkFreeMemory(device, a.memory, NULL);
    vkattn_plan_destroy(plan);
    return right;
}

int main(void)
{
    const VkInstance instance = create_instance();
    const VkPhysicalDevice physical = first_device(instance);
    vkattn_device_wants wants;
    CHECK(vkattn_device_wants_get(vkGetInstanceProcAddr, instance, physical, &wants));
    const vkattn_device_info info = {.get_instance_proc_addr = vkGetInstanceProcAddr,
                                     .instance = instance,
                                     .physical_device = physical,
                                     .device = create_device(physical, &wants),
                                     .enabled = &wants.enabled};
    vkattn_device *vkattn;
    CHECK(vkattn_device_create(&info, &vkattn));
    const int right = attend(physical, info.device, vkattn);
    vkattn_device_destroy(vkattn);
    vkDestroyDevice(info.device, NULL);
    vkDestroyInstance(instance, NULL);
    return right ? 0 : 1;
}

/* Opens a Vulkan device for tools, tests and first steps; see vkattn/helper.h. */
#include <volk.h>

#include <vkattn/helper.h>

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DEVICES = 64 };

static vkattn_status fail(vkattn_status status, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return vkattn_error_set(status, text);
}

static vkattn_status vk_status(VkResult result, const char *call)
{
    if (result == VK_SUCCESS)
        return VKATTN_OK;
    if (result == VK_ERROR_DEVICE_LOST)
        return fail(VKATTN_DEVICE_LOST, "%.*s: the device was lost", (int)strcspn(call, "("), call);
    const bool memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    /* `call` may be the source text of the call: its function is what to name. */
    return fail(memory ? VKATTN_NO_MEMORY : VKATTN_FAILED, "%.*s: the driver returned VkResult %d",
                (int)strcspn(call, "("), call, (int)result);
}

#define TRY(call)                                \
    do {                                         \
        const vkattn_status try_status = (call); \
        if (try_status != VKATTN_OK)             \
            return try_status;                   \
    } while (0)
#define TRY_VK(call) TRY(vk_status(call, #call))

/* ---- Instance -------------------------------------------------------------------------------------------------- */

static bool has_layer(const char *name)
{
    VkLayerProperties layers[64];
    uint32_t count = 64;
    if (vkEnumerateInstanceLayerProperties(&count, layers) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(layers[i].layerName, name) == 0)
            return true;
    return false;
}

static bool has_instance_extension(const char *layer, const char *name)
{
    VkExtensionProperties extensions[128];
    uint32_t count = 128;
    if (vkEnumerateInstanceExtensionProperties(layer, &count, extensions) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(extensions[i].extensionName, name) == 0)
            return true;
    return false;
}

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    vkattn_context *context = user;
    (void)severity, (void)types;
    context->validation_messages++;
    if (context->message)
        context->message(context->message_user, data->pMessage);
    return VK_FALSE;
}

static VkDebugUtilsMessengerCreateInfoEXT messenger_info(vkattn_context *context)
{
    return (VkDebugUtilsMessengerCreateInfoEXT){.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
                                                .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                                                                   VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
                                                .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
                                                .pfnUserCallback = on_message,
                                                .pUserData = context};
}

static vkattn_status load_vulkan(void)
{
    if (volkInitialize() != VK_SUCCESS)
        return fail(VKATTN_UNSUPPORTED, "no Vulkan loader (libvulkan.so.1) is installed");
    return VKATTN_OK;
}

static vkattn_status create_instance(bool validation, vkattn_context *context, VkInstance *instance)
{
    static const char layer[] = "VK_LAYER_KHRONOS_validation";
    const char *const layers[] = {layer};
    const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
    const VkValidationFeatureEnableEXT enables[] = {VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    const VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                              .enabledValidationFeatureCount = 1,
                                              .pEnabledValidationFeatures = enables};
    const uint32_t loader = volkGetInstanceVersion();
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .pApplicationName = "vkattn",
                                           .apiVersion = loader < VK_API_VERSION_1_3 ? loader : VK_API_VERSION_1_3};
    const bool loaded = validation && has_layer(layer) && has_instance_extension(layer, extensions[0]);
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pNext = loaded ? &features : NULL,
                                       .pApplicationInfo = &application,
                                       .enabledLayerCount = loaded,
                                       .ppEnabledLayerNames = layers,
                                       .enabledExtensionCount = loaded,
                                       .ppEnabledExtensionNames = extensions};
    const VkResult result = vkCreateInstance(&info, NULL, instance);
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
        return fail(VKATTN_UNSUPPORTED, "no Vulkan driver is installed");
    TRY(vk_status(result, "vkCreateInstance"));
    volkLoadInstance(*instance);
    if (!loaded)
        return VKATTN_OK;
    context->validating = 1;
    const VkDebugUtilsMessengerCreateInfoEXT messenger = messenger_info(context);
    return vk_status(vkCreateDebugUtilsMessengerEXT(*instance, &messenger, NULL, &context->messenger),
                     "vkCreateDebugUtilsMessengerEXT");
}

/* ---- Listing and choosing -------------------------------------------------------------------------------------- */

static void describe(VkPhysicalDevice physical, vkattn_listed *listed)
{
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    VkPhysicalDeviceProperties plain;
    vkGetPhysicalDeviceProperties(physical, &plain);
    if (plain.apiVersion >= VK_API_VERSION_1_2)
        properties.pNext = &driver;
    if (plain.apiVersion >= VK_API_VERSION_1_1)
        vkGetPhysicalDeviceProperties2(physical, &properties);
    *listed = (vkattn_listed){
        .api_version = plain.apiVersion, .driver_version = plain.driverVersion, .type = plain.deviceType};
    snprintf(listed->name, sizeof listed->name, "%s", plain.deviceName[0] ? plain.deviceName : "unnamed");
    snprintf(listed->driver, sizeof listed->driver, "%s", driver.driverName[0] ? driver.driverName : "unknown");
    snprintf(listed->driver_info, sizeof listed->driver_info, "%s",
             driver.driverInfo[0] ? driver.driverInfo : "unknown");
}

static vkattn_status enumerate(VkInstance instance, VkPhysicalDevice physical[MAX_DEVICES], uint32_t *count)
{
    *count = MAX_DEVICES;
    const VkResult result = vkEnumeratePhysicalDevices(instance, count, physical);
    if (result != VK_INCOMPLETE)
        TRY(vk_status(result, "vkEnumeratePhysicalDevices"));
    if (*count == 0)
        return fail(VKATTN_UNSUPPORTED, "no Vulkan device is present");
    return VKATTN_OK;
}

vkattn_status vkattn_list(vkattn_listed *listed, uint32_t capacity, uint32_t *count)
{
    VkPhysicalDevice physical[MAX_DEVICES];
    VkInstance instance = VK_NULL_HANDLE;
    vkattn_context unused = {0};
    *count = 0;
    TRY(load_vulkan());
    TRY(create_instance(false, &unused, &instance));
    const vkattn_status status = enumerate(instance, physical, count);
    for (uint32_t i = 0; status == VKATTN_OK && i < *count && i < capacity; i++)
        describe(physical[i], &listed[i]);
    vkDestroyInstance(instance, NULL);
    return status;
}

static bool name_contains(const char *name, const char *part)
{
    for (; *name; name++) {
        size_t i = 0;
        while (part[i] && tolower((unsigned char)name[i]) == tolower((unsigned char)part[i]))
            i++;
        if (part[i] == '\0')
            return true;
    }
    return false;
}

static int rank(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return 4;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        return 3;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return 2;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return 0;
    default:
        return 1;
    }
}

static bool matches(const vkattn_listed *listed, uint32_t index, const char *wanted)
{
    char *end;
    if (wanted == NULL)
        return true;
    const unsigned long number = strtoul(wanted, &end, 10);
    if (isdigit((unsigned char)wanted[0]) && *end == '\0')
        return number == index;
    return name_contains(listed->name, wanted);
}

static vkattn_status no_such_device(const vkattn_listed listed[], uint32_t count, const char *wanted)
{
    char text[400] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < count && used < sizeof text - 80; i++) {
        const int length = snprintf(text + used, sizeof text - used, "%s%u (%.60s)", i ? ", " : "", i, listed[i].name);
        used += length > 0 ? (size_t)length : 0;
    }
    return fail(VKATTN_INVALID, "device is \"%s\": no device has this number or name; present: %s", wanted, text);
}

static vkattn_status choose(const char *wanted, vkattn_context *context)
{
    VkPhysicalDevice physical[MAX_DEVICES];
    vkattn_listed listed[MAX_DEVICES];
    uint32_t count, best = MAX_DEVICES;
    TRY(enumerate(context->instance, physical, &count));
    for (uint32_t i = 0; i < count; i++) {
        describe(physical[i], &listed[i]);
        if (matches(&listed[i], i, wanted) && (best == MAX_DEVICES || rank(listed[i].type) > rank(listed[best].type)))
            best = i;
    }
    if (best == MAX_DEVICES)
        return no_such_device(listed, count, wanted);
    context->physical_device = physical[best];
    context->listed = listed[best];
    context->index = best;
    return VKATTN_OK;
}

/* ---- Device ---------------------------------------------------------------------------------------------------- */

static vkattn_status choose_family(vkattn_context *context, float *timestamp_period)
{
    VkQueueFamilyProperties families[32];
    uint32_t count = 32;
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(context->physical_device, &properties);
    vkGetPhysicalDeviceQueueFamilyProperties(context->physical_device, &count, families);
    for (uint32_t i = 0; i < count; i++)
        if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            context->queue_family = i;
            *timestamp_period = families[i].timestampValidBits ? properties.limits.timestampPeriod : 0;
            return VKATTN_OK;
        }
    return fail(VKATTN_UNSUPPORTED, "%s has no compute queue", context->listed.name);
}

static bool has_device_extension(VkPhysicalDevice physical, const char *name)
{
    uint32_t count = 0;
    bool found = false;
    if (vkEnumerateDeviceExtensionProperties(physical, NULL, &count, NULL) != VK_SUCCESS)
        return false;
    VkExtensionProperties *extensions = calloc(count + 1u, sizeof *extensions);
    if (extensions && vkEnumerateDeviceExtensionProperties(physical, NULL, &count, extensions) == VK_SUCCESS)
        for (uint32_t i = 0; i < count; i++)
            found = found || strcmp(extensions[i].extensionName, name) == 0;
    free(extensions);
    return found;
}

/* The probe of `vkattn bench` wants it; the library may have asked for it already. */
static void add_float16(const vkattn_context *context, VkPhysicalDeviceFeatures2 *features,
                        VkPhysicalDeviceShaderFloat16Int8Features *float16)
{
    VkPhysicalDeviceFeatures2 query = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = float16};
    for (VkBaseOutStructure *chained = features->pNext; chained; chained = chained->pNext)
        if (chained->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES) {
            ((VkPhysicalDeviceShaderFloat16Int8Features *)(void *)chained)->shaderFloat16 = VK_TRUE;
            return;
        }
    vkGetPhysicalDeviceFeatures2(context->physical_device, &query);
    float16->shaderInt8 = VK_FALSE;
    float16->pNext = features->pNext;
    features->pNext = float16;
}

static bool has_float16(const vkattn_context *context)
{
    VkPhysicalDeviceShaderFloat16Int8Features float16 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
    VkPhysicalDeviceFeatures2 query = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &float16};
    if (!has_device_extension(context->physical_device, VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME))
        return false;
    vkGetPhysicalDeviceFeatures2(context->physical_device, &query);
    return float16.shaderFloat16;
}

static void add_extension(const char *extensions[], uint32_t *count, const char *name)
{
    for (uint32_t i = 0; i < *count; i++)
        if (strcmp(extensions[i], name) == 0)
            return;
    extensions[(*count)++] = name;
}

static vkattn_status create_device(vkattn_context *context, const vkattn_open_info *open)
{
    static const char extension[] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executable = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pipelineExecutableInfo = VK_TRUE};
    VkPhysicalDeviceShaderFloat16Int8Features float16 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
    vkattn_device_wants wants;
    const bool statistics = open->statistics != 0;
    const char *extensions[sizeof wants.extensions / sizeof *wants.extensions + 2];
    const float priority = 1;
    TRY(vkattn_device_wants_get(context->get_instance_proc_addr, context->instance, context->physical_device, &wants));
    uint32_t extension_count = wants.extension_count;
    memcpy(extensions, wants.extensions, sizeof wants.extensions);
    if (statistics && !has_device_extension(context->physical_device, extension))
        return fail(VKATTN_UNSUPPORTED, "%s has no %s", context->listed.name, extension);
    if (statistics) {
        extensions[extension_count++] = extension;
        executable.pNext = wants.features.pNext;
        wants.features.pNext = &executable;
    }
    context->float16 = open->float16 && has_float16(context);
    if (context->float16) {
        add_extension(extensions, &extension_count, VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME);
        add_float16(context, &wants.features, &float16);
    }
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = context->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &wants.features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = extension_count,
                                     .ppEnabledExtensionNames = extensions};
    TRY_VK(vkCreateDevice(context->physical_device, &info, NULL, &context->device));
    vkGetDeviceQueue(context->device, context->queue_family, 0, &context->queue);
    context->enabled = wants.enabled;
    return VKATTN_OK;
}

static vkattn_status open_steps(const vkattn_open_info *info, vkattn_context *context)
{
    const char *environment = getenv("VKATTN_VALIDATION");
    const bool validation = info->validation || (environment && strcmp(environment, "1") == 0);
    TRY(load_vulkan());
    TRY(create_instance(validation, context, &context->instance));
    context->get_instance_proc_addr = vkGetInstanceProcAddr;
    TRY(choose(info->device, context));
    TRY(choose_family(context, &context->timestamp_period));
    TRY(create_device(context, info));
    vkGetPhysicalDeviceMemoryProperties(context->physical_device, &context->memory);
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = context->queue_family};
    TRY_VK(vkCreateCommandPool(context->device, &pool, NULL, &context->pool));
    const VkPipelineCreateFlags capture =
        VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR | VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
    const vkattn_device_info device = {.get_instance_proc_addr = context->get_instance_proc_addr,
                                       .instance = context->instance,
                                       .physical_device = context->physical_device,
                                       .device = context->device,
                                       .enabled = &context->enabled,
                                       .queue = context->queue,
                                       .queue_family = context->queue_family,
                                       .limits = info->limits,
                                       .pipeline_flags = info->statistics ? capture : 0,
                                       .message = info->message,
                                       .message_user = info->message_user,
                                       .tuning = info->tuning,
                                       .tuning_size = info->tuning_size};
    TRY(vkattn_device_create(&device, &context->vkattn));
    const char *selftest = getenv("VKATTN_SELFTEST");
    const bool wanted = context->listed.type != VK_PHYSICAL_DEVICE_TYPE_CPU && !info->no_selftest && !info->statistics;
    return wanted && !(selftest && strcmp(selftest, "0") == 0) ? vkattn_device_selftest(context->vkattn, context->queue)
                                                               : VKATTN_OK;
}

vkattn_status vkattn_open(const vkattn_open_info *info, vkattn_context **context)
{
    static const vkattn_open_info defaults = {0};
    *context = NULL;
    vkattn_context *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fail(VKATTN_NO_MEMORY, "out of host memory for a device");
    info = info ? info : &defaults;
    made->message = info->message;
    made->message_user = info->message_user;
    const vkattn_status status = open_steps(info, made);
    if (status != VKATTN_OK) {
        vkattn_close(made);
        return status;
    }
    *context = made;
    return VKATTN_OK;
}

void vkattn_close(vkattn_context *context)
{
    if (context == NULL)
        return;
    vkattn_device_destroy(context->vkattn);
    if (context->pool)
        vkDestroyCommandPool(context->device, context->pool, NULL);
    if (context->device)
        vkDestroyDevice(context->device, NULL);
    if (context->messenger)
        vkDestroyDebugUtilsMessengerEXT(context->instance, context->messenger, NULL);
    if (context->instance)
        vkDestroyInstance(context->instance, NULL);
    free(context);
}

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

/* The first with all of the flags; UINT32_MAX: there is none. */
static uint32_t memory_type(const vkattn_context *context, uint32_t allowed, VkMemoryPropertyFlags flags)
{
    for (uint32_t i = 0; i < context->memory.memoryTypeCount; i++)
        if ((allowed >> i & 1) && (context->memory.memoryTypes[i].propertyFlags & flags) == flags)
            return i;
    return UINT32_MAX;
}

static vkattn_status create_mapped(vkattn_context *context, VkDeviceSize size, VkMemoryPropertyFlags wanted,
                                   vkattn_mapped *mapped)
{
    const bool addressed = context->enabled.buffer_device_address;
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = size,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 (addressed ? (VkBufferUsageFlags)VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0)};
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryRequirements needs;
    TRY_VK(vkCreateBuffer(context->device, &info, NULL, &mapped->buffer));
    vkGetBufferMemoryRequirements(context->device, mapped->buffer, &needs);
    const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                           .pNext = addressed ? &flags : NULL,
                                           .allocationSize = needs.size,
                                           .memoryTypeIndex = memory_type(context, needs.memoryTypeBits, wanted)};
    if (allocate.memoryTypeIndex == UINT32_MAX)
        return fail(VKATTN_FAILED, "the device has no memory of the kind that a buffer needs");
    TRY_VK(vkAllocateMemory(context->device, &allocate, NULL, &mapped->memory));
    TRY_VK(vkBindBufferMemory(context->device, mapped->buffer, mapped->memory, 0));
    mapped->size = size;
    return vk_status(vkMapMemory(context->device, mapped->memory, 0, VK_WHOLE_SIZE, 0, &mapped->data), "vkMapMemory");
}

static const VkMemoryPropertyFlags host_memory =
    VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

vkattn_status vkattn_mapped_create(vkattn_context *context, VkDeviceSize size, vkattn_mapped *mapped)
{
    *mapped = (vkattn_mapped){0};
    const vkattn_status status = create_mapped(context, size ? size : 4, host_memory, mapped);
    if (status != VKATTN_OK)
        vkattn_mapped_destroy(context, mapped);
    return status;
}

vkattn_status vkattn_mapped_create_near(vkattn_context *context, VkDeviceSize size, vkattn_mapped *mapped)
{
    *mapped = (vkattn_mapped){0};
    if (create_mapped(context, size ? size : 4, host_memory | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, mapped) == VKATTN_OK)
        return VKATTN_OK;
    vkattn_mapped_destroy(context, mapped);
    return vkattn_mapped_create(context, size, mapped);
}

int vkattn_maps_near(const vkattn_context *context)
{
    return memory_type(context, UINT32_MAX, host_memory | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) != UINT32_MAX;
}

void vkattn_mapped_destroy(vkattn_context *context, vkattn_mapped *mapped)
{
    if (mapped->buffer)
        vkDestroyBuffer(context->device, mapped->buffer, NULL);
    if (mapped->memory)
        vkFreeMemory(context->device, mapped->memory, NULL);
    *mapped = (vkattn_mapped){0};
}

/* ---- Running --------------------------------------------------------------------------------------------------- */

struct run {
    VkCommandBuffer cmd;
    VkFence fence;
    VkQueryPool queries; /* VK_NULL_HANDLE: no timestamps wanted or had */
    double host_seconds;
};

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static vkattn_status record_run(struct run *run, vkattn_record_fn record, void *user)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkMemoryBarrier to_host = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    TRY_VK(vkBeginCommandBuffer(run->cmd, &begin));
    if (run->queries) {
        vkCmdResetQueryPool(run->cmd, run->queries, 0, 2);
        vkCmdWriteTimestamp(run->cmd, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, run->queries, 0);
    }
    TRY(record(user, run->cmd));
    if (run->queries)
        vkCmdWriteTimestamp(run->cmd, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, run->queries, 1);
    vkCmdPipelineBarrier(run->cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                         VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &to_host, 0, NULL, 0, NULL);
    return vk_status(vkEndCommandBuffer(run->cmd), "vkEndCommandBuffer");
}

static vkattn_status submit_run(vkattn_context *context, struct run *run)
{
    const VkSubmitInfo submit = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &run->cmd};
    const double start = now();
    TRY_VK(vkQueueSubmit(context->queue, 1, &submit, run->fence));
    TRY_VK(vkWaitForFences(context->device, 1, &run->fence, VK_TRUE, UINT64_MAX));
    run->host_seconds = now() - start;
    return VKATTN_OK;
}

static vkattn_status run_steps(vkattn_context *context, struct run *run, vkattn_record_fn record, void *user,
                               double *seconds)
{
    const VkCommandBufferAllocateInfo buffer = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = context->pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkQueryPoolCreateInfo queries = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2};
    TRY_VK(vkAllocateCommandBuffers(context->device, &buffer, &run->cmd));
    TRY_VK(vkCreateFence(context->device, &fence, NULL, &run->fence));
    if (seconds && context->timestamp_period > 0)
        TRY_VK(vkCreateQueryPool(context->device, &queries, NULL, &run->queries));
    TRY(record_run(run, record, user));
    TRY(submit_run(context, run));
    if (!seconds)
        return VKATTN_OK;
    *seconds = run->host_seconds;
    if (run->queries) {
        uint64_t ticks[2];
        TRY_VK(vkGetQueryPoolResults(context->device, run->queries, 0, 2, sizeof ticks, ticks, sizeof *ticks,
                                     VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
        *seconds = 1e-9 * (double)context->timestamp_period * (double)(ticks[1] - ticks[0]);
    }
    return VKATTN_OK;
}

vkattn_status vkattn_run(vkattn_context *context, vkattn_record_fn record, void *user, double *seconds)
{
    struct run run = {0};
    const vkattn_status status = run_steps(context, &run, record, user, seconds);
    if (run.queries)
        vkDestroyQueryPool(context->device, run.queries, NULL);
    if (run.fence)
        vkDestroyFence(context->device, run.fence, NULL);
    if (run.cmd)
        vkFreeCommandBuffers(context->device, context->pool, 1, &run.cmd);
    return status;
}

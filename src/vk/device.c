/* From a VkPhysicalDevice and what was enabled to plain numbers. */
#include "vk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

vkattn_status vkattn_vk_status(VkResult result, const char *call)
{
    /* Of "device->vk.vkMapMemory(device, ...)", a caller knows the function. */
    const int end = (int)strcspn(call, "(");
    int begin = end;
    while (begin > 0 && call[begin - 1] != '.' && call[begin - 1] != '>')
        begin--;
    const int length = end - begin;
    const char *name = call + begin;
    switch (result) {
    case VK_SUCCESS:
        return VKATTN_OK;
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return vkattn_fail(VKATTN_NO_MEMORY, "%.*s: out of host memory", length, name);
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return vkattn_fail(VKATTN_NO_MEMORY, "%.*s: out of device memory", length, name);
    case VK_ERROR_DEVICE_LOST:
        return vkattn_fail(VKATTN_DEVICE_LOST, "%.*s: the device was lost", length, name);
    default:
        return vkattn_fail(VKATTN_FAILED, "%.*s: the driver returned VkResult %d", length, name, (int)result);
    }
}

void vkattn_lock(atomic_flag *lock)
{
    while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) {
    }
}

void vkattn_unlock(atomic_flag *lock)
{
    atomic_flag_clear_explicit(lock, memory_order_release);
}

/* ---- Functions ------------------------------------------------------------------------------------------------- */

static PFN_vkVoidFunction instance_function(PFN_vkGetInstanceProcAddr get, VkInstance instance, const char *name,
                                            vkattn_status *status)
{
    const PFN_vkVoidFunction function = get(instance, name);
    if (function == NULL && *status == VKATTN_OK)
        *status = vkattn_fail(VKATTN_FAILED, "the Vulkan loader has no %s", name);
    return function;
}

static vkattn_status load_instance(PFN_vkGetInstanceProcAddr get, VkInstance instance, struct vk_table *vk)
{
    vkattn_status status = VKATTN_OK;
#define LOAD(name) vk->name = (PFN_##name)instance_function(get, instance, #name, &status);
#define SKIP(name)
    VK_FUNCTIONS(LOAD, SKIP)
#undef LOAD
#undef SKIP
    return status;
}

static vkattn_status load_device(VkDevice device, struct vk_table *vk)
{
    vkattn_status status = VKATTN_OK;
#define SKIP(name)
#define LOAD(name)                                                 \
    vk->name = (PFN_##name)vk->vkGetDeviceProcAddr(device, #name); \
    if (vk->name == NULL)                                          \
        status = vkattn_fail(VKATTN_FAILED, "the device has no %s", #name);
    VK_FUNCTIONS(SKIP, LOAD)
#undef LOAD
#undef SKIP
    return status;
}

/* By the extension's name, or the core one where the device is too new to have that. */
static PFN_vkVoidFunction load_promoted(const struct vk_table *vk, VkDevice device, const char *core,
                                        const char *extension)
{
    const PFN_vkVoidFunction function = vk->vkGetDeviceProcAddr(device, extension);
    return function ? function : vk->vkGetDeviceProcAddr(device, core);
}

/* ---- What to enable -------------------------------------------------------------------------------------------- */

struct available {
    VkPhysicalDeviceProperties properties;
    VkExtensionProperties *extensions;
    uint32_t extension_count;
};

static bool has_extension(const struct available *a, const char *name)
{
    for (uint32_t i = 0; i < a->extension_count; i++)
        if (strcmp(a->extensions[i].extensionName, name) == 0)
            return true;
    return false;
}

static vkattn_status get_available(const struct vk_table *vk, VkPhysicalDevice physical, struct available *a)
{
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vk->vkGetPhysicalDeviceProperties2(physical, &properties);
    a->properties = properties.properties;
    TRY_VK(vk->vkEnumerateDeviceExtensionProperties(physical, NULL, &a->extension_count, NULL));
    a->extensions = calloc(a->extension_count + 1u, sizeof *a->extensions);
    if (a->extensions == NULL)
        return vkattn_fail(VKATTN_NO_MEMORY, "out of host memory for %" PRIu32 " extensions", a->extension_count);
    return vkattn_vk_status(
        vk->vkEnumerateDeviceExtensionProperties(physical, NULL, &a->extension_count, a->extensions),
        "vkEnumerateDeviceExtensionProperties");
}

/* Add an extension; false when neither it nor the core version `since` is there. It is added also where the core
 * version holds it: the caller's instance may be of an older version, which the device then is, too. */
static bool want(vkattn_device_wants *wants, const struct available *a, const char *extension, uint32_t since)
{
    if (!has_extension(a, extension))
        return since != 0 && a->properties.apiVersion >= since;
    wants->extensions[wants->extension_count++] = extension;
    return true;
}

static void chain(vkattn_device_wants *wants, void *structure)
{
    VkBaseOutStructure *base = structure;
    base->pNext = wants->features.pNext;
    wants->features.pNext = base;
}

static void chain_features(vkattn_device_wants *wants, const struct available *a)
{
    wants->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    wants->buffer_device_address.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
    wants->subgroup_size_control.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT;
    wants->memory_model.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES;
    wants->float16.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES;
    wants->cooperative_matrix.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
    if (want(wants, a, VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME, VK_API_VERSION_1_2))
        chain(wants, &wants->buffer_device_address);
    if (want(wants, a, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME, VK_API_VERSION_1_3))
        chain(wants, &wants->subgroup_size_control);
    if (!has_extension(a, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME))
        return;
    if (want(wants, a, VK_KHR_VULKAN_MEMORY_MODEL_EXTENSION_NAME, VK_API_VERSION_1_2))
        chain(wants, &wants->memory_model);
    if (want(wants, a, VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME, VK_API_VERSION_1_2))
        chain(wants, &wants->float16);
    want(wants, a, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME, 0);
    chain(wants, &wants->cooperative_matrix);
}

/* The modules declare the memory model and f16 arithmetic beside the matrices: all or none. */
static void keep_matrices(vkattn_device_wants *wants)
{
    const VkBool32 matrices = wants->cooperative_matrix.cooperativeMatrix && wants->memory_model.vulkanMemoryModel &&
                              wants->memory_model.vulkanMemoryModelDeviceScope && wants->float16.shaderFloat16;
    wants->cooperative_matrix.cooperativeMatrix = matrices;
    wants->cooperative_matrix.cooperativeMatrixRobustBufferAccess = VK_FALSE;
    wants->memory_model.vulkanMemoryModel = matrices;
    wants->memory_model.vulkanMemoryModelDeviceScope = matrices; /* atomics are of that scope */
    wants->memory_model.vulkanMemoryModelAvailabilityVisibilityChains = VK_FALSE;
    wants->float16.shaderFloat16 = matrices;
    wants->float16.shaderInt8 = VK_FALSE;
    wants->enabled.cooperative_matrix = matrices;
}

/* Keep of the queried features what is used; the rest, robust access among it, stays off. */
static void keep_features(vkattn_device_wants *wants)
{
    const VkBool32 addresses = wants->buffer_device_address.bufferDeviceAddress;
    const VkBool32 sizes =
        wants->subgroup_size_control.subgroupSizeControl && wants->subgroup_size_control.computeFullSubgroups;
    memset(&wants->features.features, 0, sizeof wants->features.features);
    wants->buffer_device_address.bufferDeviceAddressCaptureReplay = VK_FALSE;
    wants->buffer_device_address.bufferDeviceAddressMultiDevice = VK_FALSE;
    wants->subgroup_size_control.subgroupSizeControl = wants->subgroup_size_control.computeFullSubgroups = sizes;
    wants->enabled.buffer_device_address = addresses;
    wants->enabled.subgroup_size_control = sizes;
    keep_matrices(wants);
}

static vkattn_status fill_wants(const struct vk_table *vk, VkPhysicalDevice physical, const struct available *a,
                                vkattn_device_wants *wants)
{
    if (a->properties.apiVersion < VK_API_VERSION_1_1)
        return vkattn_fail(VKATTN_UNSUPPORTED, "%s has Vulkan %u.%u; 1.1 is needed", a->properties.deviceName,
                           VK_API_VERSION_MAJOR(a->properties.apiVersion),
                           VK_API_VERSION_MINOR(a->properties.apiVersion));
    chain_features(wants, a);
    vk->vkGetPhysicalDeviceFeatures2(physical, &wants->features);
    keep_features(wants);
    wants->enabled.push_descriptor = want(wants, a, VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME, 0);
    wants->enabled.shader_float_controls =
        want(wants, a, VK_KHR_SHADER_FLOAT_CONTROLS_EXTENSION_NAME, VK_API_VERSION_1_2);
    if (!wants->enabled.buffer_device_address && !wants->enabled.push_descriptor)
        return vkattn_fail(VKATTN_UNSUPPORTED, "%s has neither buffer device addresses nor push descriptors",
                           a->properties.deviceName);
    return VKATTN_OK;
}

vkattn_status vkattn_device_wants_get(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance,
                                      VkPhysicalDevice physical_device, vkattn_device_wants *wants)
{
    REQUIRE(get_instance_proc_addr, "get_instance_proc_addr is NULL");
    REQUIRE(instance, "instance is VK_NULL_HANDLE");
    REQUIRE(physical_device, "physical_device is VK_NULL_HANDLE");
    REQUIRE(wants, "wants is NULL");
    memset(wants, 0, sizeof *wants);
    struct vk_table vk = {0};
    TRY(load_instance(get_instance_proc_addr, instance, &vk));
    struct available a = {0};
    vkattn_status status = get_available(&vk, physical_device, &a);
    if (status == VKATTN_OK)
        status = fill_wants(&vk, physical_device, &a, wants);
    free(a.extensions);
    return status;
}

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

static enum device_class class_of(const VkPhysicalDeviceProperties *properties)
{
    static const struct {
        uint32_t vendor;
        enum device_class device_class;
    } vendors[] = {
        {0x1002, CLASS_AMD},  {0x10DE, CLASS_NVIDIA}, {0x8086, CLASS_INTEL},
        {0x13B5, CLASS_MALI}, {0x5143, CLASS_ADRENO}, {0x106B, CLASS_APPLE},
    };
    if (properties->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU)
        return CLASS_CPU;
    for (size_t i = 0; i < sizeof vendors / sizeof *vendors; i++)
        if (vendors[i].vendor == properties->vendorID)
            return vendors[i].device_class;
    return CLASS_UNKNOWN;
}

/* Known faults of drivers: what they do, and who saw it. */
static const struct fault {
    VkDriverId driver;
    unsigned first_good_mesa;       /* major version in driverInfo; older ones have the fault. 0: all versions have */
    bool integrated;                /* only integrated GPUs have it */
    uint32_t subgroup_size;         /* it shows with subgroups of this size; 0: of any */
    enum device_class device_class; /* the class to be of instead; CLASS_UNKNOWN: no other */
    uint32_t max_loop_rounds;
    const char *addresses_off;
    const char *matrices_off; /* matrices are not even enumerated */
    bool joint_barriers;
} faults[] = {
    /* llvmpipe of Mesa 22.3.6 leaves an invocation after 65,535 rounds of all its loops together (the compiler's
     * LP_MAX_TGSI_LOOP_ITERATIONS); found by tests/gpu/test_limits.c, November 2026; 25.0.7 and 26.1.6 do not. */
    {.driver = VK_DRIVER_ID_MESA_LLVMPIPE, .first_good_mesa = 25, .max_loop_rounds = 65535},
    /* Loads at uniform addresses are as slow as any, and compile slowly: fwd_tile of 8 keys for 26 s at d = 64.
     * Mesa 25.0.7 of Debian 13 (LLVM 19), November 2026; 26.1.6 takes 0.4 s. Mesa 25.1 to 25.3 were not tried. */
    {.driver = VK_DRIVER_ID_MESA_LLVMPIPE, .first_good_mesa = 26, .device_class = CLASS_CPU_OLD},
    /* A subgroup waits at subgroupBarrier for all others of its work group, and the work group ends with the last of
     * them: one that meets fewer barriers cuts the others short. Mesa 26.1.6, fwd_coopmat, November 2026. */
    {.driver = VK_DRIVER_ID_MESA_LLVMPIPE, .joint_barriers = true},
    /* Mesa 26.1.6, LP_NATIVE_VECTOR_WIDTH=512: SIGSEGV in fwd_coopmat, by tools/with-driver mesa26-512, November 2026.
     */
    {.driver = VK_DRIVER_ID_MESA_LLVMPIPE,
     .first_good_mesa = 27,
     .subgroup_size = 16,
     .matrices_off = "llvmpipe crashes in them with vectors of 512 bits"},
    /* Likewise fwd_tile and fwd_decode by address: "stack smashing detected". 25.0.7 compiles them for minutes; 26.2.6
     * is said to be right (docs/tuning.md), but driverInfo's major number is all that is compared here. */
    {.driver = VK_DRIVER_ID_MESA_LLVMPIPE,
     .first_good_mesa = 27,
     .subgroup_size = 16,
     .addresses_off = "llvmpipe crashes by device address with vectors of 512 bits"},
    /* The enumeration crashes inside the driver on a Radeon 860M (2.0.388, May 2026); no version is said to be good. */
    {.driver = VK_DRIVER_ID_AMD_PROPRIETARY,
     .integrated = true,
     .matrices_off = "this driver crashes when they are enumerated (github.com/GPUOpen-Drivers/AMDVLK/issues/422)"},
    {.driver = VK_DRIVER_ID_AMD_OPEN_SOURCE,
     .integrated = true,
     .matrices_off = "this driver crashes when they are enumerated (github.com/GPUOpen-Drivers/AMDVLK/issues/422)"},
    /* Hangs, then the device is lost, on an Arc Pro B70 (32.0.101.8826, June 2026); a self-test would do the same. */
    {.driver = VK_DRIVER_ID_INTEL_PROPRIETARY_WINDOWS,
     .matrices_off =
         "this driver loses the device (github.com/IGCIT/Intel-GPU-Community-Issue-Tracker-IGCIT/issues/1487)"},
};

/* "Mesa 22.3.6 (LLVM 15.0.6)" -> 22; 0 where the text says otherwise. */
static unsigned mesa_major(const char *info)
{
    return strncmp(info, "Mesa ", 5) == 0 ? (unsigned)strtoul(info + 5, NULL, 10) : 0;
}

static bool has_fault(const struct fault *fault, const VkPhysicalDeviceDriverProperties *driver,
                      VkPhysicalDeviceType type, const struct caps *caps)
{
    const unsigned mesa = mesa_major(driver->driverInfo);
    const bool version = fault->first_good_mesa == 0 || (mesa != 0 && mesa < fault->first_good_mesa);
    return driver->driverID == fault->driver && version &&
           (fault->subgroup_size == 0 || fault->subgroup_size == caps->subgroup_size) &&
           (!fault->integrated || type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU);
}

static void apply_faults(const VkPhysicalDeviceDriverProperties *driver, VkPhysicalDeviceType type, struct caps *caps)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        if (!has_fault(&faults[i], driver, type, caps))
            continue;
        if (faults[i].device_class != CLASS_UNKNOWN)
            caps->device_class = faults[i].device_class;
        if (faults[i].max_loop_rounds)
            caps->max_loop_rounds = faults[i].max_loop_rounds;
        if (faults[i].joint_barriers)
            caps->joint_barriers = true;
        if (faults[i].addresses_off && caps->addresses) {
            caps->addresses = false;
            caps->addresses_off = faults[i].addresses_off;
        }
        if (faults[i].matrices_off)
            caps->matrices_off = faults[i].matrices_off;
    }
}

/* Vulkan does not tell how wide a device is. CPU drivers: some groups for each of a few cores, since more parts cost
 * only their joining; GPUs: a few subgroups for each SIMD of a middle-sized one. */
static uint32_t fill_groups(enum device_class device_class)
{
    return device_class == CLASS_CPU || device_class == CLASS_CPU_OLD   ? 32
           : device_class == CLASS_MALI || device_class == CLASS_ADRENO ? 64
           : device_class == CLASS_INTEL || device_class == CLASS_APPLE ? 256
                                                                        : 512;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void apply_limits(struct caps *caps, uint32_t limits)
{
    if (limits & (VKATTN_LIMIT_NO_SUBGROUPS | VKATTN_LIMIT_MINIMUM)) {
        caps->subgroup_size = 0;
        caps->shuffles = false;
        caps->subgroup_size_control = false;
        caps->matrix_count = 0;
    }
    if (limits & VKATTN_LIMIT_NO_MATRICES)
        caps->matrix_count = 0;
    if (limits & VKATTN_LIMIT_MINIMUM) {
        caps->shared_bytes = smaller(caps->shared_bytes, 16384);
        caps->max_invocations = smaller(caps->max_invocations, 128);
    }
    if (limits & VKATTN_LIMIT_NO_ADDRESSES)
        caps->addresses = false;
    if (limits & VKATTN_LIMIT_NO_DESCRIPTORS)
        caps->descriptors = false;
    if (limits & VKATTN_LIMIT_NO_FLOAT_CONTROLS)
        caps->float_controls = false;
    if (limits & VKATTN_LIMIT_UNKNOWN_GPU)
        caps->device_class = CLASS_UNKNOWN;
}

/* VK_KHR_driver_properties need not be enabled to be asked. A driver without it has no known fault. */
static bool names_driver(const vkattn_device *device)
{
    struct available a = {0};
    const bool has = get_available(&device->vk, device->info.physical_device, &a) == VKATTN_OK &&
                     has_extension(&a, VK_KHR_DRIVER_PROPERTIES_EXTENSION_NAME);
    free(a.extensions);
    return has;
}

static void add_matrix(const VkCooperativeMatrixPropertiesKHR *p, struct caps *caps)
{
    const bool right_types = p->AType == VK_COMPONENT_TYPE_FLOAT16_KHR && p->BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
                             p->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
                             p->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR;
    if (right_types && p->scope == VK_SCOPE_SUBGROUP_KHR && caps->matrix_count < MAX_MATRICES)
        caps->matrices[caps->matrix_count++] = (struct matrix){p->MSize, p->NSize, p->KSize};
}

/* The shapes that a kernel may use; none where the enumeration fails. */
static void fill_matrices(vkattn_device *device)
{
    enum { MOST = 128 };
    const PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)device->info.get_instance_proc_addr(
            device->info.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    VkCooperativeMatrixPropertiesKHR *all = calloc(MOST, sizeof *all);
    uint32_t count = MOST;
    for (uint32_t i = 0; all && i < MOST; i++)
        all[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (get && all && get(device->info.physical_device, &count, all) >= VK_SUCCESS)
        for (uint32_t i = 0; i < count; i++)
            add_matrix(&all[i], &device->caps);
    free(all);
}

/* Operations that fwd_coopmat uses in a subgroup. */
static bool shuffles(const VkPhysicalDeviceSubgroupProperties *subgroup)
{
    const VkSubgroupFeatureFlags needed = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    return (subgroup->supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
           (subgroup->supportedOperations & needed) == needed;
}

static void fill_caps(vkattn_device *device)
{
    const vkattn_enabled *enabled = device->info.enabled;
    VkPhysicalDeviceSubgroupSizeControlPropertiesEXT sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT};
    VkPhysicalDeviceFloatControlsProperties floats = {.sType =
                                                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES};
    VkPhysicalDevicePushDescriptorPropertiesKHR push = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PUSH_DESCRIPTOR_PROPERTIES_KHR};
    VkPhysicalDeviceSubgroupProperties subgroup = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &subgroup};
    if (enabled->subgroup_size_control)
        sizes.pNext = properties.pNext, properties.pNext = &sizes;
    if (enabled->shader_float_controls)
        floats.pNext = properties.pNext, properties.pNext = &floats;
    if (enabled->push_descriptor)
        push.pNext = properties.pNext, properties.pNext = &push;
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    if (names_driver(device))
        driver.pNext = properties.pNext, properties.pNext = &driver;
    device->vk.vkGetPhysicalDeviceProperties2(device->info.physical_device, &properties);

    const VkPhysicalDeviceLimits *limits = &properties.properties.limits;
    /* A device that has one size needs no asking: full subgroups are of that size. */
    const bool control =
        enabled->subgroup_size_control && ((sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) ||
                                           sizes.minSubgroupSize == sizes.maxSubgroupSize);
    const uint32_t buffers = VKA_TENSORS + 1;
    device->caps = (struct caps){
        .device_class = class_of(&properties.properties),
        .subgroup_size = subgroup.subgroupSize,
        .subgroup_size_min = control ? sizes.minSubgroupSize : subgroup.subgroupSize,
        .subgroup_size_max = control ? sizes.maxSubgroupSize : subgroup.subgroupSize,
        .subgroup_size_control = control,
        .addresses = enabled->buffer_device_address,
        .descriptors = enabled->push_descriptor && push.maxPushDescriptors >= buffers &&
                       limits->maxPerStageDescriptorStorageBuffers >= buffers &&
                       limits->maxDescriptorSetStorageBuffers >= buffers && limits->maxPerStageResources >= buffers,
        .float_controls = floats.shaderSignedZeroInfNanPreserveFloat32,
        .max_invocations = smaller(limits->maxComputeWorkGroupInvocations, limits->maxComputeWorkGroupSize[0]),
        .shared_bytes = limits->maxComputeSharedMemorySize,
        .max_groups_x = limits->maxComputeWorkGroupCount[0],
        .max_groups_y = limits->maxComputeWorkGroupCount[1],
        .max_range = limits->maxStorageBufferRange,
        .offset_alignment = (uint32_t)limits->minStorageBufferOffsetAlignment,
        .shuffles = shuffles(&subgroup),
    };
    device->key = (struct tuning_key){.vendor = properties.properties.vendorID,
                                      .device = properties.properties.deviceID,
                                      .driver_id = (uint32_t)driver.driverID,
                                      .driver_version = properties.properties.driverVersion};
    memcpy(device->key.name, properties.properties.deviceName, sizeof device->key.name - 1);
    apply_faults(&driver, properties.properties.deviceType, &device->caps);
    device->caps.fill_groups = fill_groups(device->caps.device_class);
    if (enabled->cooperative_matrix && device->caps.shuffles && !device->caps.matrices_off)
        fill_matrices(device);
    apply_limits(&device->caps, device->info.limits);
}

/* ---- Creation -------------------------------------------------------------------------------------------------- */

static vkattn_status check_info(const vkattn_device_info *info)
{
    REQUIRE(info->get_instance_proc_addr, "info.get_instance_proc_addr is NULL");
    REQUIRE(info->instance, "info.instance is VK_NULL_HANDLE");
    REQUIRE(info->physical_device, "info.physical_device is VK_NULL_HANDLE");
    REQUIRE(info->device, "info.device is VK_NULL_HANDLE");
    REQUIRE(info->enabled, "info.enabled is NULL");
    return VKATTN_OK;
}

static vkattn_status create_layouts(vkattn_device *device)
{
    const struct vk_table *vk = &device->vk;
    VkDescriptorSetLayoutBinding bindings[VKA_TENSORS + 1];
    for (uint32_t i = 0; i < VKA_TENSORS + 1; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                 .flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR,
                                                 .bindingCount = VKA_TENSORS + 1,
                                                 .pBindings = bindings};
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = sizeof(vka_push)};
    const VkPipelineLayoutCreateInfo plain = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                              .pushConstantRangeCount = 1,
                                              .pPushConstantRanges = &range};
    TRY_VK(vk->vkCreatePipelineLayout(device->info.device, &plain, device->info.allocator, &device->layouts[1]));
    if (!device->caps.descriptors)
        return VKATTN_OK;
    TRY_VK(vk->vkCreateDescriptorSetLayout(device->info.device, &set, device->info.allocator, &device->set_layout));
    VkPipelineLayoutCreateInfo with_set = plain;
    with_set.setLayoutCount = 1;
    with_set.pSetLayouts = &device->set_layout;
    return vkattn_vk_status(
        vk->vkCreatePipelineLayout(device->info.device, &with_set, device->info.allocator, &device->layouts[0]),
        "vkCreatePipelineLayout");
}

static vkattn_status check_minimum(const struct caps *caps)
{
    if (!caps->addresses && !caps->descriptors && caps->addresses_off)
        return vkattn_fail(VKATTN_UNSUPPORTED, "push descriptors are not enabled, and %s", caps->addresses_off);
    if (!caps->addresses && !caps->descriptors)
        return vkattn_fail(VKATTN_UNSUPPORTED,
                           "the device has neither buffer device addresses nor push descriptors enabled");
    if (caps->max_invocations < 128)
        return vkattn_fail(VKATTN_UNSUPPORTED, "the device has %" PRIu32 " invocations in a work group; 128 are needed",
                           caps->max_invocations);
    if (caps->shared_bytes < 16384)
        return vkattn_fail(VKATTN_UNSUPPORTED, "the device has %" PRIu32 " bytes of shared memory; 16384 are needed",
                           caps->shared_bytes);
    return VKATTN_OK;
}

/* One line to the caller's sink for something that was left off. */
static void say(const vkattn_device *device, const char *text)
{
    if (device->info.message)
        device->info.message(device->info.message_user, text);
}

static void say_what_is_off(const vkattn_device *device)
{
    const struct caps *caps = &device->caps;
    if (caps->addresses_off)
        say(device, caps->addresses_off);
    if (!caps->addresses)
        say(device, "vkattn: no buffer device addresses: tensors are reached by push descriptors");
    if (!caps->descriptors)
        say(device, "vkattn: no push descriptors for all tensors at once: tensors are reached by address only");
    if (!caps->subgroup_size_control)
        say(device, "vkattn: no subgroup size control: heads are not split over subgroups");
    if (caps->matrix_count == 0)
        say(device, "vkattn: no cooperative matrices of f16 with f32 sums: products are multiplied without");
    if (!caps->float_controls)
        say(device, "vkattn: no SignedZeroInfNanPreserve for f32: modules are built without it");
}

/* A tuning that is not for this device changes nothing, and is no reason to do without the device. */
static void take_tuning(vkattn_device *device)
{
    const void *bytes = device->info.tuning;
    device->info.tuning = NULL; /* the caller's no longer than this call */
    device->caps.tuning = &device->tuning;
    if (!bytes || vkattn_tuning_read(bytes, device->info.tuning_size, &device->key, &device->tuning) == VKATTN_OK)
        return;
    strncpy(device->tuning_refusal, vkattn_last_error(), sizeof device->tuning_refusal - 1);
    say(device, device->tuning_refusal);
}

static vkattn_status init_device(vkattn_device *device)
{
    struct vk_table *vk = &device->vk;
    TRY(load_instance(device->info.get_instance_proc_addr, device->info.instance, vk));
    TRY(load_device(device->info.device, vk));
    fill_caps(device);
    if (device->caps.descriptors)
        vk->vkCmdPushDescriptorSetKHR = (PFN_vkCmdPushDescriptorSetKHR)load_promoted(
            vk, device->info.device, "vkCmdPushDescriptorSet", "vkCmdPushDescriptorSetKHR");
    if (device->caps.addresses)
        vk->vkGetBufferDeviceAddressKHR = (PFN_vkGetBufferDeviceAddressKHR)load_promoted(
            vk, device->info.device, "vkGetBufferDeviceAddress", "vkGetBufferDeviceAddressKHR");
    device->caps.descriptors = device->caps.descriptors && vk->vkCmdPushDescriptorSetKHR;
    device->caps.addresses = device->caps.addresses && vk->vkGetBufferDeviceAddressKHR;
    TRY(check_minimum(&device->caps));
    say_what_is_off(device);
    take_tuning(device);
    return create_layouts(device);
}

vkattn_status vkattn_device_create_sized(const vkattn_device_info *info, size_t info_size, vkattn_device **device)
{
    REQUIRE(device, "device is NULL");
    *device = NULL;
    vkattn_device_info copy;
    TRY(vkattn_copy_sized(&copy, sizeof copy, info, info_size, "info"));
    TRY(check_info(&copy));
    vkattn_device *made = calloc(1, sizeof *made);
    if (made == NULL)
        return vkattn_fail(VKATTN_NO_MEMORY, "out of host memory for a device");
    made->info = copy;
    made->enabled = *copy.enabled;
    made->info.enabled = &made->enabled;
    atomic_flag_clear(&made->lock);
    atomic_flag_clear(&made->queue_lock);
    const vkattn_status status = init_device(made);
    if (status != VKATTN_OK) {
        vkattn_device_destroy(made);
        return status;
    }
    *device = made;
    return VKATTN_OK;
}

void vkattn_device_destroy(vkattn_device *device)
{
    if (device == NULL)
        return;
    const struct vk_table *vk = &device->vk;
    vkattn_pipelines_destroy(device);
    for (int i = 0; i < 2; i++)
        if (device->layouts[i])
            vk->vkDestroyPipelineLayout(device->info.device, device->layouts[i], device->info.allocator);
    if (device->set_layout)
        vk->vkDestroyDescriptorSetLayout(device->info.device, device->set_layout, device->info.allocator);
    free(device);
}

uint32_t vkattn_device_pipeline_count(const vkattn_device *device)
{
    vkattn_device *mutable_lock = (vkattn_device *)(uintptr_t)device;
    vkattn_lock(&mutable_lock->lock);
    const uint32_t count = device->pipeline_count;
    vkattn_unlock(&mutable_lock->lock);
    return count;
}

const struct caps *vkattn_device_caps(const vkattn_device *device)
{
    return &device->caps;
}

const struct tuning_key *vkattn_device_key(const vkattn_device *device)
{
    return &device->key;
}

const char *vkattn_device_tuning_refusal(const vkattn_device *device)
{
    return device->tuning_refusal[0] ? device->tuning_refusal : NULL;
}

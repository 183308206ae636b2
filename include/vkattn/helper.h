/*
 * A helper that opens a Vulkan device, for tools, tests and first steps. It is a library of its own (vkattn_helper),
 * loads Vulkan through volk, and nothing in vkattn itself needs it.
 */
#ifndef VKATTN_HELPER_H
#define VKATTN_HELPER_H

#include <vkattn/vulkan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One physical device, as listed. Text fields are never empty. */
typedef struct vkattn_listed {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    char driver[VK_MAX_DRIVER_NAME_SIZE]; /* driverName, or "unknown" before Vulkan 1.2 */
    char driver_info[VK_MAX_DRIVER_INFO_SIZE];
    uint32_t api_version;
    uint32_t driver_version;
    VkPhysicalDeviceType type;
} vkattn_listed;

typedef struct vkattn_open_info {
    const char *device; /* a number in the list, or a part of the name (case ignored; "" is a part of each); of several
                           that fit, and of all for NULL, the best: discrete, integrated, virtual, other, CPU */
    uint32_t limits;    /* VKATTN_LIMIT_ bits */
    int validation;     /* nonzero: VK_LAYER_KHRONOS_validation with synchronisation checks, when it is installed */
    int statistics;     /* nonzero: pipelines keep what VK_KHR_pipeline_executable_properties can tell */
    int no_selftest;    /* nonzero: leave vkattn_device_selftest to the caller. It is left to him also on CPU devices,
                           where a unit's first pipeline compiles for a second, and with VKATTN_SELFTEST=0 */
    int float16;        /* nonzero: shaderFloat16 is enabled where the device has it; nothing in vkattn needs it */
    vkattn_message_fn message; /* messages of the library, within vkattn_open; and of validation, of several lines
                                  perhaps, at any time until vkattn_close, on the thread whose Vulkan call they are
                                  about. May be NULL */
    void *message_user;
    const void *tuning; /* of vkattn_device_info; read within vkattn_open alone */
    size_t tuning_size;
} vkattn_open_info;

/* An open device. Read the fields; they live until vkattn_close. */
typedef struct vkattn_context {
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    VkQueue queue;
    uint32_t queue_family;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    vkattn_enabled enabled;
    vkattn_listed listed;
    uint32_t index; /* in the list */
    VkPhysicalDeviceMemoryProperties memory;
    float timestamp_period;       /* nanoseconds per tick; 0: the queue has no timestamps */
    int validating;               /* the validation layer is loaded */
    int float16;                  /* shaderFloat16 is enabled */
    uint32_t validation_messages; /* warnings and errors so far; any means a defect */
    vkattn_device *vkattn;
    VkCommandPool pool;
    VkDebugUtilsMessengerEXT messenger;
    vkattn_message_fn message;
    void *message_user;
} vkattn_context;

/* Fill at most `capacity` entries; `listed` may be NULL where that is 0. *count receives the number of devices that
 * there are, at most 64, which may be more than `capacity`. Returns VKATTN_OK, VKATTN_UNSUPPORTED (no Vulkan loader,
 * driver or device), VKATTN_NO_MEMORY, VKATTN_FAILED. On failure *count is 0. Threads: one at a time of this,
 * vkattn_open and vkattn_close. */
VKATTN_API vkattn_status vkattn_list(vkattn_listed *listed, uint32_t capacity, uint32_t *count);

/* Open a device with a compute queue and everything that vkattn_device_wants_get names.
 * Returns VKATTN_OK
 *         VKATTN_INVALID      info->device names no device; the sentence lists those there are
 *         VKATTN_UNSUPPORTED  no Vulkan loader, driver or device, or the device is below the minimum
 *         VKATTN_NO_MEMORY, VKATTN_DEVICE_LOST, VKATTN_FAILED  from the driver.
 * On failure *context is NULL. info may be NULL: all defaults. Threads: one at a time, as vkattn_list. */
VKATTN_API vkattn_status vkattn_open(const vkattn_open_info *info, vkattn_context **context);

/* Close a device; NULL is ignored. Its plans and mapped buffers must be gone, and what was submitted finished.
 * Threads: one at a time, as vkattn_list; no other call may be using the context. */
VKATTN_API void vkattn_close(vkattn_context *context);

/* A buffer in host-visible, host-coherent memory, mapped; with a device address where the device has them. */
typedef struct vkattn_mapped {
    VkBuffer buffer;
    VkDeviceMemory memory;
    VkDeviceSize size; /* bytes */
    void *data;
} vkattn_mapped;

/* Make a buffer of `size` bytes, of 4 where that is 0, for any use by vkattn. Its contents are undefined.
 * Returns VKATTN_OK, VKATTN_NO_MEMORY, VKATTN_DEVICE_LOST, VKATTN_FAILED. On failure *mapped is zeroed.
 * Threads: any. */
VKATTN_API vkattn_status vkattn_mapped_create(vkattn_context *context, VkDeviceSize size, vkattn_mapped *mapped);

/* As vkattn_mapped_create, in the device's own memory where the host can map that and there is room: fast for the
 * device, slow for the host to read. */
VKATTN_API vkattn_status vkattn_mapped_create_near(vkattn_context *context, VkDeviceSize size, vkattn_mapped *mapped);

/* Nonzero: the device has memory of its own, or that it shares with the host, which vkattn_mapped_create_near takes.
 * Threads: any. */
VKATTN_API int vkattn_maps_near(const vkattn_context *context);

/* Free a buffer and zero *mapped; one that is zeroed is ignored. No submitted command may still use it.
 * Threads: any, each with buffers of its own. */
VKATTN_API void vkattn_mapped_destroy(vkattn_context *context, vkattn_mapped *mapped);

/* Begin a command buffer, let `record` fill it, submit it and wait. A status from `record` other than VKATTN_OK ends
 * the call without a submission. *seconds, if not NULL, receives the device time between the first and the last
 * command, or the host's from submission to the end where the queue has no timestamps. Writes by compute shaders and
 * copies are then visible to the host.
 *
 * Returns VKATTN_OK, what `record` returned, or VKATTN_NO_MEMORY, VKATTN_DEVICE_LOST, VKATTN_FAILED from the driver; on
 * failure *seconds stays as it was. Threads: one at a time per context, and not while vkattn_attend uses its queue. */
typedef vkattn_status (*vkattn_record_fn)(void *user, VkCommandBuffer cmd);
VKATTN_API vkattn_status vkattn_run(vkattn_context *context, vkattn_record_fn record, void *user, double *seconds);

#ifdef __cplusplus
}
#endif

#endif

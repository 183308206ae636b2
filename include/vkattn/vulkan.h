/*
 * vkattn on a VkDevice: what to enable, how to hand a device to the library, how to record a plan.
 *
 * The caller owns instance, device, queue, memory and command buffer. The library loads the few functions that it
 * calls through the caller's vkGetInstanceProcAddr; it does not link libvulkan and never submits, except in
 * vkattn_attend.
 *
 * Minimum: Vulkan 1.1, a compute queue, 128 invocations, 16 KiB of shared memory, and buffer device addresses or push
 * descriptors. Everything else is used when it is there.
 */
#ifndef VKATTN_VULKAN_H
#define VKATTN_VULKAN_H

#include <vkattn/vkattn.h>
#include <vulkan/vulkan_core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What was enabled when the VkDevice was created; Vulkan cannot be asked. All false is legal and leaves the library
 * nothing to reach tensors with. */
typedef struct vkattn_enabled {
    VkBool32 buffer_device_address; /* feature bufferDeviceAddress (Vulkan 1.2 or its KHR extension) */
    VkBool32 push_descriptor;       /* VK_KHR_push_descriptor */
    VkBool32 subgroup_size_control; /* features subgroupSizeControl and computeFullSubgroups */
    VkBool32 shader_float_controls; /* VK_KHR_shader_float_controls, or Vulkan 1.2 */
    VkBool32 cooperative_matrix;    /* features cooperativeMatrix (VK_KHR_cooperative_matrix), vulkanMemoryModel,
                                       vulkanMemoryModelDeviceScope and shaderFloat16 (Vulkan 1.2 or KHR extensions) */
} vkattn_enabled;

/* VkPhysicalDeviceCooperativeMatrixFeaturesKHR, which older headers lack. */
typedef struct vkattn_cooperative_matrix_features {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix;
    VkBool32 cooperativeMatrixRobustBufferAccess;
} vkattn_cooperative_matrix_features;

/* Extensions and features for vkCreateDevice. It is filled in place and points into itself: do not copy it. */
typedef struct vkattn_device_wants {
    vkattn_enabled enabled; /* what the device will have when all of the below is enabled */
    uint32_t extension_count;
    const char *extensions[12];         /* static strings */
    VkPhysicalDeviceFeatures2 features; /* head of a pNext chain: VkDeviceCreateInfo::pNext */
    VkPhysicalDeviceBufferDeviceAddressFeatures buffer_device_address;
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT subgroup_size_control;
    VkPhysicalDeviceVulkanMemoryModelFeatures memory_model;
    VkPhysicalDeviceShaderFloat16Int8Features float16;
    vkattn_cooperative_matrix_features cooperative_matrix;
} vkattn_device_wants;

/*
 * Fill in what is worth enabling on a physical device: pass wants->extensions and &wants->features to vkCreateDevice
 * and &wants->enabled to vkattn_device_create. A caller with a chain of its own enables what it likes and fills a
 * vkattn_enabled by hand.
 *
 * Returns VKATTN_OK
 *         VKATTN_INVALID      a NULL argument
 *         VKATTN_UNSUPPORTED  Vulkan below 1.1, or neither addresses nor push descriptors. Threads: any.
 */
VKATTN_API vkattn_status vkattn_device_wants_get(PFN_vkGetInstanceProcAddr get_instance_proc_addr, VkInstance instance,
                                                 VkPhysicalDevice physical_device, vkattn_device_wants *wants);

/* Bits of vkattn_device_info.limits: pretend that the device has less. For tests, and to work round a driver. */
enum {
    VKATTN_LIMIT_NO_ADDRESSES = 1u << 0,
    VKATTN_LIMIT_NO_DESCRIPTORS = 1u << 1,
    VKATTN_LIMIT_NO_SUBGROUPS = 1u << 2,
    VKATTN_LIMIT_MINIMUM = 1u << 3, /* no subgroup operations, 16 KiB of shared memory, 128 invocations */
    VKATTN_LIMIT_NO_FLOAT_CONTROLS = 1u << 4,
    VKATTN_LIMIT_UNKNOWN_GPU = 1u << 5, /* planned for as a GPU that nobody measured, whatever the device is */
    VKATTN_LIMIT_NO_MATRICES = 1u << 6,
    VKATTN_LIMIT_FAIL_SELFTEST = 1u << 7 /* pretend that vkattn_device_selftest finds everything wrong */
};

/* Messages that are no errors: a feature that was left off and why. `text` is one line without a newline, and lives as
 * long as the call. The library calls it within vkattn_device_create alone, on the thread that called that. */
typedef void (*vkattn_message_fn)(void *user, const char *text);

typedef struct vkattn_device_info {
    PFN_vkGetInstanceProcAddr get_instance_proc_addr; /* required */
    VkInstance instance;                              /* required */
    VkPhysicalDevice physical_device;                 /* required */
    VkDevice device;                                  /* required */
    const vkattn_enabled *enabled;                    /* required */
    VkPipelineCache pipeline_cache;                   /* may be VK_NULL_HANDLE; not an externally synchronised one */
    const VkAllocationCallbacks *allocator;           /* may be NULL; must outlive the device */
    VkQueue queue;                                    /* only for vkattn_attend; may be VK_NULL_HANDLE */
    uint32_t queue_family;                            /* of queue; has VK_QUEUE_COMPUTE_BIT */
    uint32_t limits;                                  /* VKATTN_LIMIT_ bits */
    VkPipelineCreateFlags pipeline_flags;             /* added to every pipeline's, such as
                                                         VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR */
    vkattn_message_fn message;                        /* may be NULL */
    void *message_user;
    const void *tuning; /* the bytes of a file that `vkattn tune` wrote on this device with this driver: which tiles
                           are the fastest, and what kernels cost; NULL: what the library's tables say. Read within
                           vkattn_device_create alone. A file that is damaged, or of another device, driver or version
                           of vkattn, changes nothing: see vkattn_device_tuning_refusal */
    size_t tuning_size; /* bytes */
} vkattn_device_info;

/*
 * Hand a VkDevice to the library. Everything in info but the tuning is borrowed and must outlive the device.
 * Returns VKATTN_OK, VKATTN_INVALID (a required field is NULL), VKATTN_UNSUPPORTED (below the minimum; the sentence
 * says in what), VKATTN_NO_MEMORY, VKATTN_FAILED (the loader lacks a function). On failure *device is NULL. Threads:
 * any.
 */
VKATTN_API vkattn_status vkattn_device_create_sized(const vkattn_device_info *info, size_t info_size,
                                                    vkattn_device **device);
static inline vkattn_status vkattn_device_create(const vkattn_device_info *info, vkattn_device **device)
{
    return vkattn_device_create_sized(info, sizeof *info, device);
}

/* What a device does that drivers have got wrong, and whether the library uses it. */
typedef enum vkattn_unit_state {
    VKATTN_UNIT_UNTESTED, /* used where planning prefers it; the self-test takes the matrix shape that it does prefer */
    VKATTN_UNIT_RIGHT,    /* used: vkattn_device_selftest found it right */
    VKATTN_UNIT_OFF       /* not used; `reason` says why */
} vkattn_unit_state;

typedef struct vkattn_unit {
    char name[40]; /* "matrices 16x16x16 f16", "subgroups of a required size" */
    vkattn_unit_state state;
    char reason[160];
} vkattn_unit;

/* The units of a device from index 0 on; 0 past the last, else 1. Threads: any, except beside the self-test. */
VKATTN_API int vkattn_device_unit(const vkattn_device *device, uint32_t index, vkattn_unit *unit);

/*
 * Run what kernels would use of the units, as they do, on small problems, and compare with plain arithmetic: the matrix
 * shape that planning prefers (where it fails, the next), and subgroups of a required size. What is wrong, or cannot be
 * run, is off from then on, with a reason that vkattn_explain shows. Untested units are used, unless the driver is
 * known to be at fault. Allocates, submits and waits; on a GPU for milliseconds, most of which are compilation. To be
 * called before the device's first plan, once per device and driver version.
 *
 * queue  of info.queue_family; lent for the call
 *
 * Returns VKATTN_OK also where something was turned off; VKATTN_INVALID (an argument is NULL), VKATTN_NO_MEMORY,
 * VKATTN_DEVICE_LOST (what was being tested is off). Threads: nothing else may use the device or the queue.
 */
VKATTN_API vkattn_status vkattn_device_selftest(vkattn_device *device, VkQueue queue);

/* Free a device and its pipelines; NULL is ignored. Plans must be gone and recorded command buffers finished. */
VKATTN_API void vkattn_device_destroy(vkattn_device *device);

/* Why the tuning was not taken, a sentence that lives as long as the device, which is told to info.message, too; NULL:
 * it was, or there was none. Threads: any. */
VKATTN_API const char *vkattn_device_tuning_refusal(const vkattn_device *device);

/* Scratch memory of a plan. */
typedef struct vkattn_workspace {
    VkDeviceSize size;      /* bytes, never 0 */
    VkDeviceSize alignment; /* of the offset in the buffer, bytes */
    VkBufferUsageFlags usage;
} vkattn_workspace;

/* The workspace that a plan needs. Its contents need not survive between recordings. Threads: any. */
VKATTN_API vkattn_workspace vkattn_plan_workspace(const vkattn_plan *plan);

/* Usage flags that each tensor's buffer must have been created with for a plan. Threads: any. */
VKATTN_API VkBufferUsageFlags vkattn_plan_usage(const vkattn_plan *plan);

/* One tensor: `size` bytes of `buffer` from `offset` on. A tensor is aligned to its element and no more. The library
 * reads and binds whole 32-bit words, so the range rounded outwards to 4 bytes must lie in the buffer. Only elements of
 * outputs are written. */
typedef struct vkattn_buffer {
    VkBuffer buffer;
    VkDeviceSize offset;     /* bytes */
    VkDeviceSize size;       /* bytes from offset; 0: no such tensor */
    VkDeviceAddress address; /* of buffer's first byte; 0: the library asks the driver. Read only in address mode */
} vkattn_buffer;

/* The tensors of one recording. Their shapes and types, and which of them are required, are in the table of
 * vkattn_problem (vkattn.h), those of the vectors with the bits of its flags. What the problem does not use is ignored.
 */
typedef struct vkattn_buffers {
    vkattn_buffer q, k, v, o, lse, weights, mask, bias, alibi, sinks;
    vkattn_buffer kv_lengths, q_lengths, prefix, q_segments, kv_segments;
    vkattn_buffer workspace; /* see vkattn_plan_workspace */
} vkattn_buffers;

/*
 * Append a plan to a command buffer. Allocates nothing, compiles nothing, submits nothing, waits for nothing.
 *
 * lengths  NULL: the problem's. Less than the problem's may be used, never more.
 *
 * Synchronisation is the caller's at both ends:
 *   before  writes to the inputs must be available and visible to COMPUTE_SHADER / SHADER_READ, earlier writes to
 *           the outputs to COMPUTE_SHADER / SHADER_READ | SHADER_WRITE, and earlier reads of the outputs must be over:
 *           a 16-bit element is stored by changing its half of a 32-bit word, whose other half may be a neighbour's.
 *   after   the outputs were written by COMPUTE_SHADER / SHADER_WRITE.
 *   The workspace is written by TRANSFER, and read and perhaps written by COMPUTE_SHADER. Two recordings in
 *   one queue that share a workspace are ordered by the library's own first barrier. Executions that may overlap need a
 *   workspace each.
 *
 * State left on cmd: the compute pipeline, push constants, and with descriptors the push-descriptor set 0.
 * cmd must be recording, outside a render pass, of a family with VK_QUEUE_COMPUTE_BIT; one thread at a time per cmd.
 *
 * Returns VKATTN_OK
 *         VKATTN_INVALID      a buffer is missing, too small or misaligned, or lengths exceed the problem's
 *         VKATTN_UNSUPPORTED  a tensor is larger than maxStorageBufferRange (with descriptors); there would be 2^32 or
 *                             more work groups; 16-bit K or V starts in mid-word and the plan holds no kernel for that.
 * On failure nothing was appended. Threads: any, one per cmd.
 */
VKATTN_API vkattn_status vkattn_record_sized(const vkattn_plan *plan, VkCommandBuffer cmd,
                                             const vkattn_buffers *buffers, size_t buffers_size,
                                             const vkattn_lengths *lengths);
static inline vkattn_status vkattn_record(const vkattn_plan *plan, VkCommandBuffer cmd, const vkattn_buffers *buffers,
                                          const vkattn_lengths *lengths)
{
    return vkattn_record_sized(plan, cmd, buffers, sizeof *buffers, lengths);
}

typedef struct vkattn_merge_buffers {
    vkattn_buffer first_o, first_lse, second_o, second_lse;
    vkattn_buffer o, lse;    /* outputs */
    vkattn_buffer workspace; /* see vkattn_plan_workspace */
} vkattn_merge_buffers;

/*
 * Append a merge to a command buffer: as vkattn_record, with a plan of vkattn_plan_create_merge. An attention recorded
 * before it must have been made visible to COMPUTE_SHADER / SHADER_READ by the caller's barrier, as any input.
 *
 * lengths  NULL: the merge's. len_kv is ignored.
 */
VKATTN_API vkattn_status vkattn_record_merge_sized(const vkattn_plan *plan, VkCommandBuffer cmd,
                                                   const vkattn_merge_buffers *buffers, size_t buffers_size,
                                                   const vkattn_lengths *lengths);
static inline vkattn_status vkattn_record_merge(const vkattn_plan *plan, VkCommandBuffer cmd,
                                                const vkattn_merge_buffers *buffers, const vkattn_lengths *lengths)
{
    return vkattn_record_merge_sized(plan, cmd, buffers, sizeof *buffers, lengths);
}

/* The pipeline of one step of a plan (vkattn_report.step_count), for tools that ask the driver about it; borrowed.
 * VK_NULL_HANDLE past the last step. Threads: any. */
VKATTN_API VkPipeline vkattn_plan_pipeline(const vkattn_plan *plan, uint32_t step);

/* Pipelines that this device has built so far. For tests and for decode loops that must not compile. Threads: any. */
VKATTN_API uint32_t vkattn_device_pipeline_count(const vkattn_device *device);

#ifdef __cplusplus
}
#endif

#endif

/* What the Vulkan side shares: the table of functions that the library calls, the device, the plan. */
#ifndef VKATTN_VK_H
#define VKATTN_VK_H

#include "matrices.h"
#include "plan.h"
#include "status.h"
#include "tuning.h"

#include <stdatomic.h>
#include <vkattn/vulkan.h>

/* Every Vulkan function that the library calls. I: by instance; D: by device. */
#define VK_FUNCTIONS(I, D)                  \
    I(vkGetPhysicalDeviceProperties2)       \
    I(vkGetPhysicalDeviceFeatures2)         \
    I(vkGetPhysicalDeviceMemoryProperties)  \
    I(vkEnumerateDeviceExtensionProperties) \
    I(vkGetDeviceProcAddr)                  \
    D(vkCreateDescriptorSetLayout)          \
    D(vkDestroyDescriptorSetLayout)         \
    D(vkCreatePipelineLayout)               \
    D(vkDestroyPipelineLayout)              \
    D(vkCreateShaderModule)                 \
    D(vkDestroyShaderModule)                \
    D(vkCreateComputePipelines)             \
    D(vkDestroyPipeline)                    \
    D(vkCreateBuffer)                       \
    D(vkDestroyBuffer)                      \
    D(vkGetBufferMemoryRequirements)        \
    D(vkAllocateMemory)                     \
    D(vkFreeMemory)                         \
    D(vkBindBufferMemory)                   \
    D(vkMapMemory)                          \
    D(vkCreateCommandPool)                  \
    D(vkDestroyCommandPool)                 \
    D(vkAllocateCommandBuffers)             \
    D(vkBeginCommandBuffer)                 \
    D(vkEndCommandBuffer)                   \
    D(vkCreateFence)                        \
    D(vkDestroyFence)                       \
    D(vkWaitForFences)                      \
    D(vkQueueSubmit)                        \
    D(vkCmdBindPipeline)                    \
    D(vkCmdPushConstants)                   \
    D(vkCmdDispatch)                        \
    D(vkCmdUpdateBuffer)                    \
    D(vkCmdCopyBuffer)                      \
    D(vkCmdPipelineBarrier)

struct vk_table {
#define DECLARE(name) PFN_##name name;
    VK_FUNCTIONS(DECLARE, DECLARE)
#undef DECLARE
    PFN_vkCmdPushDescriptorSetKHR vkCmdPushDescriptorSetKHR;     /* NULL without push descriptors */
    PFN_vkGetBufferDeviceAddressKHR vkGetBufferDeviceAddressKHR; /* NULL without addresses */
};

/* A pipeline that was built, and what it was built from. */
struct pipeline {
    struct pipeline *next;
    const struct spirv *spirv;
    uint32_t constants[VKA_IDS];
    VkPipeline handle; /* VK_NULL_HANDLE while a thread builds it */
};

struct vkattn_device {
    struct caps caps; /* points to tuning */
    struct tuning_key key;
    struct tuning tuning;
    char tuning_refusal[256]; /* "": it was taken, or there was none */
    vkattn_device_info info;
    vkattn_enabled enabled; /* info.enabled points here */
    struct vk_table vk;
    VkDescriptorSetLayout set_layout; /* VK_NULL_HANDLE without push descriptors */
    VkPipelineLayout layouts[2];      /* by addresses: no, yes */
    atomic_flag lock;                 /* of the list of pipelines; held for a few instructions */
    struct pipeline *pipelines;
    uint32_t pipeline_count;
    atomic_flag queue_lock; /* of vkQueueSubmit in vkattn_attend */
};

struct vkattn_plan {
    struct plan plan;
    vkattn_device *device;
    VkPipeline pipelines[MAX_STEPS];
    VkPipeline mid_word; /* VK_NULL_HANDLE: the plan has no such step */
};

/* VKATTN_OK, or the status and sentence for a VkResult that `call` returned. */
vkattn_status vkattn_vk_status(VkResult result, const char *call);

#define TRY_VK(call) TRY(vkattn_vk_status(call, #call))

/* vkattn_attend on a queue of info.queue_family. */
vkattn_status vkattn_attend_on(vkattn_device *device, VkQueue queue, const vkattn_problem *problem,
                               const vkattn_options *options, const vkattn_tensors *tensors);

void vkattn_lock(atomic_flag *lock);
void vkattn_unlock(atomic_flag *lock);

/* Find or build the pipeline of a step. Threads: any. */
vkattn_status vkattn_pipeline_get(vkattn_device *device, const struct step *step, bool addresses, VkPipeline *pipeline);
void vkattn_pipelines_destroy(vkattn_device *device);

#endif

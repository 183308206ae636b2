#include <volk.h>

#include "probe.h"

#include "kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bench/probe.comp: 64 work groups of 64 invocations, 4096 steps of 16 multiply-adds. */
enum { GROUPS = 64, INVOCATIONS = 64, STEPS = 4096, CHAINS = 16 };

extern const struct spirv vkattn_spirv_probe[2];

struct probe {
    vkattn_context *context;
    vkattn_mapped seed, sink;
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorPool pool;
    VkDescriptorSet set;
};

double probe_flops(void)
{
    return 2.0 * GROUPS * INVOCATIONS * STEPS * CHAINS;
}

static vkattn_status checked(VkResult result, const char *call)
{
    char text[128];
    if (result == VK_SUCCESS)
        return VKATTN_OK;
    snprintf(text, sizeof text, "%s: the driver returned VkResult %d", call, (int)result);
    return vkattn_error_set(VKATTN_FAILED, text);
}

#define TRY(call)                                \
    do {                                         \
        const vkattn_status try_status = (call); \
        if (try_status != VKATTN_OK)             \
            return try_status;                   \
    } while (0)
#define TRY_VK(call) TRY(checked(call, #call))

static vkattn_status make_pipeline(struct probe *probe)
{
    const VkDevice device = probe->context->device;
    const VkDescriptorSetLayoutBinding bindings[] = {
        {.binding = 0,
         .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
         .descriptorCount = 1,
         .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT},
        {.binding = 3,
         .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
         .descriptorCount = 1,
         .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT},
    };
    const VkDescriptorSetLayoutCreateInfo set = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 2, .pBindings = bindings};
    TRY_VK(vkCreateDescriptorSetLayout(device, &set, NULL, &probe->set_layout));
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1, .pSetLayouts = &probe->set_layout};
    TRY_VK(vkCreatePipelineLayout(device, &layout, NULL, &probe->layout));
    const VkShaderModuleCreateInfo module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                             .codeSize = vkattn_spirv_probe[0].count * sizeof(uint32_t),
                                             .pCode = vkattn_spirv_probe[0].words};
    VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                  .pName = "main"},
                                        .layout = probe->layout};
    TRY_VK(vkCreateShaderModule(device, &module, NULL, &info.stage.module));
    const VkResult result = vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &probe->pipeline);
    vkDestroyShaderModule(device, info.stage.module, NULL);
    return checked(result, "vkCreateComputePipelines");
}

static vkattn_status make_set(struct probe *probe)
{
    const VkDevice device = probe->context->device;
    TRY(vkattn_mapped_create(probe->context, 16, &probe->seed));
    TRY(vkattn_mapped_create(probe->context, GROUPS * INVOCATIONS * 16, &probe->sink));
    memcpy(probe->seed.data, (float[]){1, 1, 1, 1}, 16);
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 2};
    const VkDescriptorPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1, .poolSizeCount = 1, .pPoolSizes = &size};
    TRY_VK(vkCreateDescriptorPool(device, &pool, NULL, &probe->pool));
    const VkDescriptorSetAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                                  .descriptorPool = probe->pool,
                                                  .descriptorSetCount = 1,
                                                  .pSetLayouts = &probe->set_layout};
    TRY_VK(vkAllocateDescriptorSets(device, &allocate, &probe->set));
    const VkDescriptorBufferInfo buffers[] = {{probe->seed.buffer, 0, VK_WHOLE_SIZE},
                                              {probe->sink.buffer, 0, VK_WHOLE_SIZE}};
    for (uint32_t i = 0; i < 2; i++) {
        const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                            .dstSet = probe->set,
                                            .dstBinding = 3 * i,
                                            .descriptorCount = 1,
                                            .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                            .pBufferInfo = &buffers[i]};
        vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
    }
    return VKATTN_OK;
}

vkattn_status probe_open(vkattn_context *context, struct probe **probe)
{
    *probe = NULL;
    struct probe *made = calloc(1, sizeof *made);
    if (!made)
        return vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for the probe");
    made->context = context;
    vkattn_status status = make_pipeline(made);
    if (status == VKATTN_OK)
        status = make_set(made);
    if (status == VKATTN_OK)
        *probe = made;
    else
        probe_close(made);
    return status;
}

static vkattn_status record(void *user, VkCommandBuffer cmd)
{
    const struct probe *probe = user;
    vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, probe->pipeline);
    vkCmdBindDescriptorSets(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, probe->layout, 0, 1, &probe->set, 0, NULL);
    vkCmdDispatch(cmd, GROUPS, 1, 1);
    return VKATTN_OK;
}

vkattn_status probe_run(struct probe *probe, struct sample *sample)
{
    return timing_run(probe->context, record, probe, sample);
}

void probe_close(struct probe *probe)
{
    if (!probe)
        return;
    const VkDevice device = probe->context->device;
    vkDestroyPipeline(device, probe->pipeline, NULL);
    vkDestroyPipelineLayout(device, probe->layout, NULL);
    vkDestroyDescriptorSetLayout(device, probe->set_layout, NULL);
    vkDestroyDescriptorPool(device, probe->pool, NULL);
    if (probe->seed.buffer)
        vkattn_mapped_destroy(probe->context, &probe->seed);
    if (probe->sink.buffer)
        vkattn_mapped_destroy(probe->context, &probe->sink);
    free(probe);
}

#include <volk.h>

#include "probe.h"

#include "kernel.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bench/probe.comp: work groups of 64 invocations, 4096 steps of 16 multiply-adds; 64 groups are its own size. */
enum { GROUPS = 64, MOST_GROUPS = 16384, INVOCATIONS = 64, STEPS = 4096, CHAINS = 16 };

/* bench/probe_matrix.comp */
enum { MATRIX_STEPS = 256, MATRIX_CHAINS = 4, MOST_ELEMENTS = 64 * 64 };

/* A run of a probe that grows takes as long as this, where that is in its power. */
static const double enough_seconds = 2e-3;

/* Beyond what caches hold; a processor's are smaller, and its copies slower. */
enum { COPY_BYTES = 1 << 28, CPU_COPY_BYTES = 1 << 26 };

/* Of a probe's module. */
enum { MOST_WORDS = 4096 };

extern const struct spirv vkattn_spirv_probe[2], vkattn_spirv_probe_f16[2], vkattn_spirv_probe_matrix[2];

/* What is measured; a probe without a module does not compute. */
static const struct {
    const char *name, *unit;
    const struct spirv *spirv;
} kinds[PROBE_KINDS] = {
    [PROBE_BASE] = {"probe", "FLOP", vkattn_spirv_probe},
    [PROBE_F32] = {"f32 multiply-add", "FLOP", vkattn_spirv_probe},
    [PROBE_F16] = {"f16 multiply-add", "FLOP", vkattn_spirv_probe_f16},
    [PROBE_MATRIX] = {"f16 matrix product", "FLOP", vkattn_spirv_probe_matrix},
    [PROBE_COPY] = {"copy", "B", NULL},
};

struct probe {
    vkattn_context *context;
    enum probe_kind kind;
    uint32_t groups;
    struct matrix matrix; /* of PROBE_MATRIX */
    uint32_t subgroup;
    vkattn_mapped seed, sink; /* of a copy: from and to */
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorPool pool;
    VkDescriptorSet set;
};

const char *probe_name(enum probe_kind kind)
{
    return kinds[kind].name;
}

const char *probe_unit(enum probe_kind kind)
{
    return kinds[kind].unit;
}

double probe_work(const struct probe *probe)
{
    if (probe->kind == PROBE_COPY)
        return 2.0 * (double)probe->seed.size;
    if (probe->kind == PROBE_MATRIX)
        return 2.0 * probe->groups * MATRIX_STEPS * MATRIX_CHAINS * probe->matrix.m * probe->matrix.n * probe->matrix.k;
    return 2.0 * probe->groups * INVOCATIONS * STEPS * CHAINS;
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
    const struct spirv *spirv = kinds[probe->kind].spirv;
    uint32_t words[MOST_WORDS];
    if (spirv->count > MOST_WORDS)
        return vkattn_error_set(VKATTN_NO_MEMORY, "the probe's module is too large");
    vkattn_spirv_words(spirv, words);
    const VkShaderModuleCreateInfo module = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = spirv->count * sizeof *words, .pCode = words};
    const uint32_t values[] = {probe->subgroup, probe->matrix.m, probe->matrix.n, probe->matrix.k};
    const VkSpecializationMapEntry entries[] = {{VKA_ID_WORKGROUP, 0, sizeof *values},
                                                {VKA_ID_MATRIX_M, sizeof *values, sizeof *values},
                                                {VKA_ID_MATRIX_N, 2 * sizeof *values, sizeof *values},
                                                {VKA_ID_MATRIX_K, 3 * sizeof *values, sizeof *values}};
    const VkSpecializationInfo specialization = {4, entries, sizeof values, values};
    const struct caps *caps = vkattn_device_caps(probe->context->vkattn);
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT,
        .requiredSubgroupSize = probe->subgroup};
    const bool full = probe->kind == PROBE_MATRIX && caps->subgroup_size_control;
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = full && caps->subgroup_size_min != caps->subgroup_size_max ? &size : NULL,
                  .flags = full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main",
                  .pSpecializationInfo = probe->kind == PROBE_MATRIX ? &specialization : NULL},
        .layout = probe->layout};
    TRY_VK(vkCreateShaderModule(device, &module, NULL, &info.stage.module));
    const VkResult result = vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &probe->pipeline);
    vkDestroyShaderModule(device, info.stage.module, NULL);
    return checked(result, "vkCreateComputePipelines");
}

static vkattn_status make_set(struct probe *probe)
{
    const VkDevice device = probe->context->device;
    const uint32_t most = probe->kind == PROBE_BASE ? GROUPS : MOST_GROUPS;
    const bool matrix = probe->kind == PROBE_MATRIX;
    const struct matrix m = probe->matrix;
    const VkDeviceSize group_bytes = matrix ? (VkDeviceSize)m.m * m.n * 4 : INVOCATIONS * 16;
    TRY(vkattn_mapped_create_near(probe->context, matrix ? 2 * (m.m + m.n) * m.k : 16, &probe->seed));
    TRY(vkattn_mapped_create_near(probe->context, most * group_bytes, &probe->sink));
    memcpy(probe->seed.data, (float[]){1, 1, 1, 1}, 16);
    for (uint32_t i = 0; matrix && i < (m.m + m.n) * m.k; i++)
        ((uint16_t *)probe->seed.data)[i] = (uint16_t)(0x1400 + i % 1024); /* f16: 0.001 to 0.002 */
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

static vkattn_status make_copy(struct probe *probe)
{
    const bool cpu = probe->context->listed.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
    const VkDeviceSize bytes = cpu ? CPU_COPY_BYTES : COPY_BYTES;
    TRY(vkattn_mapped_create_near(probe->context, bytes, &probe->seed));
    TRY(vkattn_mapped_create_near(probe->context, bytes, &probe->sink));
    memset(probe->seed.data, 1, bytes); /* pages that were never written may all be one */
    return VKATTN_OK;
}

/* The shape that the kernels would take first. */
static vkattn_status choose_matrix(struct probe *probe)
{
    const struct caps *caps = vkattn_device_caps(probe->context->vkattn);
    uint32_t i = 0;
    while (i < caps->matrix_count && caps->matrix_off[i])
        i++;
    if (caps->matrices_off || i == caps->matrix_count)
        return vkattn_error_set(VKATTN_UNSUPPORTED, "the device has no matrix units that are used");
    probe->matrix = caps->matrices[i];
    probe->subgroup = caps->subgroup_size_control ? caps->subgroup_size_min : caps->subgroup_size;
    if (probe->matrix.m * probe->matrix.n > MOST_ELEMENTS)
        return vkattn_error_set(VKATTN_UNSUPPORTED, "the device's matrices are larger than the probe's");
    if (probe->matrix.k % 8 || probe->matrix.n % 8)
        return vkattn_error_set(VKATTN_UNSUPPORTED, "rows of the device's matrices are no multiples of 16 bytes");
    return VKATTN_OK;
}

static vkattn_status make_compute(struct probe *probe)
{
    if (kinds[probe->kind].spirv->missing)
        return vkattn_error_set(VKATTN_UNSUPPORTED, kinds[probe->kind].spirv->missing);
    if (probe->kind == PROBE_MATRIX)
        TRY(choose_matrix(probe));
    if (probe->kind == PROBE_F16 && !probe->context->float16)
        return vkattn_error_set(VKATTN_UNSUPPORTED, "the device has no f16 arithmetic (shaderFloat16)");
    TRY(make_pipeline(probe));
    return make_set(probe);
}

static vkattn_status record(void *user, VkCommandBuffer cmd)
{
    const struct probe *probe = user;
    if (probe->kind == PROBE_COPY) {
        vkCmdCopyBuffer(cmd, probe->seed.buffer, probe->sink.buffer, 1, &(VkBufferCopy){.size = probe->seed.size});
        return VKATTN_OK;
    }
    vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, probe->pipeline);
    vkCmdBindDescriptorSets(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, probe->layout, 0, 1, &probe->set, 0, NULL);
    vkCmdDispatch(cmd, probe->groups, 1, 1);
    return VKATTN_OK;
}

vkattn_status probe_run(struct probe *probe, struct sample *sample)
{
    return timing_run(probe->context, record, probe, sample);
}

/* Until one run takes long enough, or the work groups are many. The first run compiles, so the second counts. */
static vkattn_status grow(struct probe *probe)
{
    struct sample sample;
    TRY(probe_run(probe, &sample));
    for (;;) {
        TRY(probe_run(probe, &sample));
        if (sample.device >= enough_seconds || probe->groups >= MOST_GROUPS)
            return VKATTN_OK;
        probe->groups *= 4;
    }
}

vkattn_status probe_open(vkattn_context *context, enum probe_kind kind, struct probe **probe)
{
    *probe = NULL;
    struct probe *made = calloc(1, sizeof *made);
    if (!made)
        return vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for the probe");
    *made = (struct probe){.context = context, .kind = kind, .groups = GROUPS};
    vkattn_status status = kind == PROBE_COPY ? make_copy(made) : make_compute(made);
    if (status == VKATTN_OK && (kind == PROBE_F32 || kind == PROBE_F16 || kind == PROBE_MATRIX))
        status = grow(made);
    else if (status == VKATTN_OK)
        status = probe_run(made, &(struct sample){0}); /* compiles, and touches the pages */
    if (status == VKATTN_OK)
        *probe = made;
    else
        probe_close(made);
    return status;
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

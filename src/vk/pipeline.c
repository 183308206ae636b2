/* (kernel, constants) to a pipeline, once per device; and plans, which hold pipelines. */
#include "vk.h"

#include <stdlib.h>
#include <string.h>

#if !defined(__STDC_NO_THREADS__)
#include <threads.h>
#define yield_thread() thrd_yield()
#else
#define yield_thread() ((void)0)
#endif

/* ---- Modules --------------------------------------------------------------------------------------------------- */

enum {
    SPIRV_HEADER_WORDS = 5,
    OP_EXTENSION = 10,
    OP_EXECUTION_MODE = 16,
    OP_CAPABILITY = 17,
    CAPABILITY_SIGNED_ZERO_INF_NAN_PRESERVE = 4466,
    MODE_SIGNED_ZERO_INF_NAN_PRESERVE = 4461,
};

/* Whether an instruction belongs to SPV_KHR_float_controls, which the modules declare and not every device has. */
static bool is_float_controls(const uint32_t *words)
{
    switch (words[0] & 0xFFFF) {
    case OP_CAPABILITY:
        return words[1] == CAPABILITY_SIGNED_ZERO_INF_NAN_PRESERVE;
    case OP_EXECUTION_MODE:
        return words[2] == MODE_SIGNED_ZERO_INF_NAN_PRESERVE;
    case OP_EXTENSION:
        return strcmp((const char *)(words + 1), "SPV_KHR_float_controls") == 0;
    default:
        return false;
    }
}

/* Takes three instructions out; returns how many words are left. */
static size_t strip_float_controls(uint32_t *words, size_t count)
{
    size_t left = SPIRV_HEADER_WORDS;
    for (size_t at = SPIRV_HEADER_WORDS; at < count;) {
        const size_t length = words[at] >> 16;
        if (!is_float_controls(words + at)) {
            memmove(words + left, words + at, length * sizeof *words);
            left += length;
        }
        at += length;
    }
    return left;
}

static vkattn_status create_module(vkattn_device *device, const struct spirv *spirv, VkShaderModule *module)
{
    uint32_t *words = malloc(spirv->count * sizeof *words);
    if (words == NULL)
        return vkattn_fail(VKATTN_NO_MEMORY, "out of host memory for a shader module");
    vkattn_spirv_words(spirv, words);
    const size_t count = device->caps.float_controls ? spirv->count : strip_float_controls(words, spirv->count);
    const VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = count * sizeof *words, .pCode = words};
    const VkResult result = device->vk.vkCreateShaderModule(device->info.device, &info, device->info.allocator, module);
    free(words);
    return vkattn_vk_status(result, "vkCreateShaderModule");
}

/* ---- Pipelines ------------------------------------------------------------------------------------------------- */

/* A constant that is left to params keeps the module's default. */
static uint32_t fill_specialization(const uint32_t constants[VKA_IDS], VkSpecializationMapEntry entries[VKA_IDS])
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < VKA_IDS; id++)
        if (constants[id] != VKA_FROM_PARAMS)
            entries[count++] = (VkSpecializationMapEntry){
                .constantID = id, .offset = id * (uint32_t)sizeof *constants, .size = sizeof *constants};
    return count;
}

static vkattn_status build(vkattn_device *device, const struct step *step, bool addresses, VkPipeline *pipeline)
{
    const struct vk_table *vk = &device->vk;
    VkShaderModule module;
    TRY(create_module(device, &step->kernel->spirv[addresses], &module));

    VkSpecializationMapEntry entries[VKA_IDS];
    const VkSpecializationInfo specialization = {.mapEntryCount = fill_specialization(step->constants, entries),
                                                 .pMapEntries = entries,
                                                 .dataSize = sizeof step->constants,
                                                 .pData = step->constants};
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT,
        .requiredSubgroupSize = step->constants[VKA_ID_SUBGROUP]};
    const struct caps *caps = &device->caps;
    const bool full = step->constants[VKA_ID_SUBGROUP] != 0 && step->constants[VKA_ID_SUBGROUP] != VKA_FROM_PARAMS;
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = device->info.pipeline_flags,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = full && caps->subgroup_size_min != caps->subgroup_size_max ? &size : NULL,
                  .flags = full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &specialization},
        .layout = device->layouts[addresses]};
    const VkResult result = vk->vkCreateComputePipelines(device->info.device, device->info.pipeline_cache, 1, &info,
                                                         device->info.allocator, pipeline);
    vk->vkDestroyShaderModule(device->info.device, module, device->info.allocator);
    return vkattn_vk_status(result, "vkCreateComputePipelines");
}

static struct pipeline *find_locked(const vkattn_device *device, const struct spirv *spirv, const struct step *step)
{
    struct pipeline *p = device->pipelines;
    while (p && (p->spirv != spirv || memcmp(p->constants, step->constants, sizeof p->constants) != 0))
        p = p->next;
    return p;
}

/* Enter `mine` into the list, to be built by this thread, unless there is an equal one: that one's handle, which is
 * VK_NULL_HANDLE while another thread builds it. */
static bool claim(vkattn_device *device, struct pipeline *mine, const struct step *step, VkPipeline *handle)
{
    vkattn_lock(&device->lock);
    const struct pipeline *found = find_locked(device, mine->spirv, step);
    *handle = found ? found->handle : VK_NULL_HANDLE;
    if (!found) {
        mine->next = device->pipelines;
        device->pipelines = mine;
    }
    vkattn_unlock(&device->lock);
    return !found;
}

static void withdraw(vkattn_device *device, struct pipeline *mine)
{
    vkattn_lock(&device->lock);
    struct pipeline **link = &device->pipelines;
    while (*link != mine)
        link = &(*link)->next;
    *link = mine->next;
    vkattn_unlock(&device->lock);
    free(mine);
}

static vkattn_status build_claimed(vkattn_device *device, struct pipeline *mine, const struct step *step,
                                   bool addresses, VkPipeline *handle)
{
    const vkattn_status status = build(device, step, addresses, handle);
    if (status != VKATTN_OK) {
        withdraw(device, mine);
        return status;
    }
    vkattn_lock(&device->lock);
    mine->handle = *handle;
    device->pipeline_count++;
    vkattn_unlock(&device->lock);
    return VKATTN_OK;
}

vkattn_status vkattn_pipeline_get(vkattn_device *device, const struct step *step, bool addresses, VkPipeline *pipeline)
{
    struct pipeline *mine = malloc(sizeof *mine);
    if (mine == NULL)
        return vkattn_fail(VKATTN_NO_MEMORY, "out of host memory for a pipeline");
    mine->spirv = &step->kernel->spirv[addresses];
    mine->handle = VK_NULL_HANDLE;
    memcpy(mine->constants, step->constants, sizeof mine->constants);
    while (!claim(device, mine, step, pipeline)) {
        if (*pipeline != VK_NULL_HANDLE) {
            free(mine);
            return VKATTN_OK;
        }
        yield_thread(); /* another thread builds it: seconds at most */
    }
    return build_claimed(device, mine, step, addresses, pipeline);
}

void vkattn_pipelines_destroy(vkattn_device *device)
{
    while (device->pipelines) {
        struct pipeline *pipeline = device->pipelines;
        device->pipelines = pipeline->next;
        device->vk.vkDestroyPipeline(device->info.device, pipeline->handle, device->info.allocator);
        free(pipeline);
    }
}

/* ---- Plans ----------------------------------------------------------------------------------------------------- */

/* The pipelines of a chosen plan. */
static vkattn_status build_plan(vkattn_plan *plan)
{
    for (uint32_t i = 0; i < plan->plan.step_count; i++)
        TRY(vkattn_pipeline_get(plan->device, &plan->plan.steps[i], plan->plan.addresses, &plan->pipelines[i]));
    if (plan->plan.mid_word.kernel)
        TRY(vkattn_pipeline_get(plan->device, &plan->plan.mid_word, plan->plan.addresses, &plan->mid_word));
    return VKATTN_OK;
}

/* A plan of a canonical problem or merge. */
static vkattn_status make_plan(vkattn_device *device, const struct problem *canonical, const vkattn_options *options,
                               vkattn_plan **plan)
{
    vkattn_plan *made = calloc(1, sizeof *made);
    if (made == NULL)
        return vkattn_fail(VKATTN_NO_MEMORY, "out of host memory for a plan");
    made->device = device;
    vkattn_status status = canonical->merge ? vkattn_plan_merge(canonical, &device->caps, options, &made->plan)
                                            : vkattn_plan_choose(canonical, &device->caps, options, &made->plan, NULL);
    if (status == VKATTN_OK)
        status = build_plan(made);
    if (status != VKATTN_OK) {
        free(made);
        return status;
    }
    *plan = made;
    return VKATTN_OK;
}

static vkattn_status copy_options(vkattn_options *copy, const vkattn_options *options, size_t options_size)
{
    *copy = (vkattn_options){0};
    return options ? vkattn_copy_sized(copy, sizeof *copy, options, options_size, "options") : VKATTN_OK;
}

vkattn_status vkattn_plan_create_sized(vkattn_device *device, const vkattn_problem *problem, size_t problem_size,
                                       const vkattn_options *options, size_t options_size, vkattn_plan **plan)
{
    REQUIRE(plan, "plan is NULL");
    *plan = NULL;
    REQUIRE(device, "device is NULL");
    vkattn_options copy;
    struct problem canonical;
    TRY(copy_options(&copy, options, options_size));
    TRY(vkattn_problem_canonical(problem, problem_size, &canonical));
    return make_plan(device, &canonical, &copy, plan);
}

vkattn_status vkattn_plan_create_merge_sized(vkattn_device *device, const vkattn_merge *merge, size_t merge_size,
                                             const vkattn_options *options, size_t options_size, vkattn_plan **plan)
{
    REQUIRE(plan, "plan is NULL");
    *plan = NULL;
    REQUIRE(device, "device is NULL");
    vkattn_options copy;
    struct problem canonical;
    TRY(copy_options(&copy, options, options_size));
    TRY(vkattn_merge_canonical(merge, merge_size, &canonical));
    return make_plan(device, &canonical, &copy, plan);
}

void vkattn_plan_destroy(vkattn_plan *plan)
{
    free(plan);
}

const char *vkattn_plan_kernel(const vkattn_plan *plan)
{
    return vkattn_forward_step(&plan->plan)->kernel->name;
}

VkPipeline vkattn_plan_pipeline(const vkattn_plan *plan, uint32_t step)
{
    return step < plan->plan.step_count ? plan->pipelines[step] : VK_NULL_HANDLE;
}

vkattn_workspace vkattn_plan_workspace(const vkattn_plan *plan)
{
    return (vkattn_workspace){.size = plan->plan.workspace_size,
                              .alignment = vkattn_workspace_alignment(&plan->device->caps),
                              .usage = vkattn_plan_usage(plan) | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
}

VkBufferUsageFlags vkattn_plan_usage(const vkattn_plan *plan)
{
    return VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
           (plan->plan.addresses ? (VkBufferUsageFlags)VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0);
}

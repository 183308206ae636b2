/* vkattn devices: each device, what it can do, and the kernels that it gets. */
#define _GNU_SOURCE /* getopt_long */

#include "command.h"
#include "json.h"

#include "vk/matrices.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is shown --------------------------------------------------------------------------------------------- */

#define SAMPLES    5u
#define MOST_UNITS 32u

/* Problems that people ask about; what each gets is shown. */
static const struct {
    const char *name;
    vkattn_problem problem;
} samples[SAMPLES] = {
    {"prefill f32 d=64", {.heads = 8, .len_q = 1024, .len_kv = 1024, .dim_qk = 64}},
    {"prefill f16 d=64",
     {.heads = 8,
      .len_q = 1024,
      .len_kv = 1024,
      .dim_qk = 64,
      .q_type = VKATTN_F16,
      .kv_type = VKATTN_F16,
      .o_type = VKATTN_F16}},
    {"prefill f16 d=128 causal",
     {.heads = 32,
      .kv_heads = 8,
      .len_q = 1024,
      .len_kv = 1024,
      .dim_qk = 128,
      .q_type = VKATTN_F16,
      .kv_type = VKATTN_F16,
      .o_type = VKATTN_F16,
      .flags = VKATTN_CAUSAL,
      .align = VKATTN_BOTTOM_RIGHT}},
    {"decode bf16 d=128",
     {.heads = 32,
      .kv_heads = 8,
      .len_q = 1,
      .len_kv = 4096,
      .dim_qk = 128,
      .q_type = VKATTN_BF16,
      .kv_type = VKATTN_BF16,
      .o_type = VKATTN_BF16}},
    {"prefill f32 d=256", {.heads = 8, .len_q = 1024, .len_kv = 1024, .dim_qk = 256}},
};

struct facts {
    uint32_t index;
    vkattn_listed listed;
    const char *unusable; /* why the device cannot be opened; NULL: it can */
    char reason[512];
    vkattn_enabled enabled;
    uint32_t subgroup_size, max_invocations, shared_bytes;
    uint64_t max_range;
    bool cooperative_matrix;
    VkCooperativeMatrixPropertiesKHR *matrices; /* freed by the caller */
    uint32_t matrix_count;
    vkattn_unit units[MOST_UNITS];
    unsigned unit_count;
    vkattn_report reports[SAMPLES];
};

static const char *type_name(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return "discrete GPU";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        return "integrated GPU";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return "virtual GPU";
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return "CPU";
    default:
        return "other";
    }
}

/* VkComponentTypeKHR; `text` holds what has no name here. */
static const char *component_name(uint32_t type, char text[24])
{
    static const char *const names[] = {"f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"};
    if (type < sizeof names / sizeof *names)
        return names[type];
    if (type == 1000141000)
        return "bf16";
    snprintf(text, 24, "type %" PRIu32, type);
    return text;
}

/* VkScopeKHR */
static const char *scope_name(uint32_t scope)
{
    static const char *const names[] = {[1] = "device", [2] = "work group", [3] = "subgroup", [5] = "queue family"};
    return scope < sizeof names / sizeof *names && names[scope] ? names[scope] : "unknown";
}

/* NULL where no kernel runs it. */
static const char *chosen_kernel(const vkattn_report *report)
{
    return report->chosen >= 0 ? report->candidates[report->chosen].kernel : NULL;
}

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

static bool has_extension(const vkattn_context *context, const char *name)
{
    const PFN_vkEnumerateDeviceExtensionProperties enumerate =
        (PFN_vkEnumerateDeviceExtensionProperties)context->get_instance_proc_addr(
            context->instance, "vkEnumerateDeviceExtensionProperties");
    uint32_t count = 0;
    if (!enumerate || enumerate(context->physical_device, NULL, &count, NULL) != VK_SUCCESS)
        return false;
    VkExtensionProperties *all = calloc(count ? count : 1, sizeof *all);
    bool found = false;
    if (all && enumerate(context->physical_device, NULL, &count, all) >= VK_SUCCESS) {
        for (uint32_t i = 0; i < count && !found; i++)
            found = strcmp(all[i].extensionName, name) == 0;
    }
    free(all);
    return found;
}

/* Which products of matrices there are; none where the driver does not say. */
static void ask_matrices(const vkattn_context *context, struct facts *facts)
{
    const PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)context->get_instance_proc_addr(
            context->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    uint32_t count = 0;
    /* By name, since older headers lack the extension's constant. */
    facts->cooperative_matrix = has_extension(context, "VK_KHR_cooperative_matrix");
    if (!facts->cooperative_matrix || !get || get(context->physical_device, &count, NULL) != VK_SUCCESS)
        return;
    facts->matrices = calloc(count ? count : 1, sizeof *facts->matrices);
    for (uint32_t i = 0; facts->matrices && i < count; i++)
        facts->matrices[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (facts->matrices && get(context->physical_device, &count, facts->matrices) >= VK_SUCCESS)
        facts->matrix_count = count;
}

static void ask_driver(const vkattn_context *context, struct facts *facts)
{
    const PFN_vkGetPhysicalDeviceProperties2 get = (PFN_vkGetPhysicalDeviceProperties2)context->get_instance_proc_addr(
        context->instance, "vkGetPhysicalDeviceProperties2");
    VkPhysicalDeviceSubgroupProperties subgroup = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &subgroup};
    if (get)
        get(context->physical_device, &properties);
    facts->subgroup_size = subgroup.subgroupSize;
    facts->max_invocations = properties.properties.limits.maxComputeWorkGroupInvocations;
    facts->shared_bytes = properties.properties.limits.maxComputeSharedMemorySize;
    facts->max_range = properties.properties.limits.maxStorageBufferRange;
    facts->enabled = context->enabled;
    ask_matrices(context, facts);
    while (facts->unit_count < MOST_UNITS &&
           vkattn_device_unit(context->vkattn, facts->unit_count, &facts->units[facts->unit_count]))
        facts->unit_count++;
    for (unsigned i = 0; i < SAMPLES; i++) {
        if (vkattn_explain(context->vkattn, &samples[i].problem, NULL, &facts->reports[i]) != VKATTN_OK)
            facts->reports[i].chosen = -1;
    }
}

static void ask(uint32_t index, const vkattn_listed *listed, bool verbose, struct facts *facts)
{
    vkattn_context *context = NULL;
    char number[16];
    snprintf(number, sizeof number, "%" PRIu32, index);
    *facts = (struct facts){.index = index, .listed = *listed};
    const vkattn_open_info info = {.device = number, .message = verbose ? command_message : NULL};
    command_progress("asking %s ...", listed->name);
    vkattn_status status = vkattn_open(&info, &context);
    if (status == VKATTN_OK && listed->type == VK_PHYSICAL_DEVICE_TYPE_CPU)
        status = vkattn_device_selftest(context->vkattn, context->queue);
    if (status == VKATTN_OK) {
        ask_driver(context, facts);
    } else {
        snprintf(facts->reason, sizeof facts->reason, "%s", vkattn_last_error());
        facts->unusable = facts->reason;
    }
    vkattn_close(context);
    command_progress(NULL);
}

/* ---- Text ------------------------------------------------------------------------------------------------------ */

static void version_text(uint32_t version, char text[48])
{
    snprintf(text, 48, "%u.%u.%u", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version),
             VK_API_VERSION_PATCH(version));
}

static const char *const unit_states[] = {"not tested", "right", "off: "};

static const char *yes_no(VkBool32 value)
{
    return value ? "yes" : "no";
}

/* "16x16x16 f16 x f16 + f32 -> f32, of a subgroup": A is M x K, B is K x N */
static void print_matrix(const VkCooperativeMatrixPropertiesKHR *matrix)
{
    char a[24], b[24], c[24], result[24];
    printf("%" PRIu32 "x%" PRIu32 "x%" PRIu32 " %s x %s + %s -> %s%s, of a %s\n", matrix->MSize, matrix->NSize,
           matrix->KSize, component_name((uint32_t)matrix->AType, a), component_name((uint32_t)matrix->BType, b),
           component_name((uint32_t)matrix->CType, c), component_name((uint32_t)matrix->ResultType, result),
           matrix->saturatingAccumulation ? " saturating" : "", scope_name((uint32_t)matrix->scope));
}

static void print_matrices(const struct facts *facts)
{
    printf("   matrix units      %s\n",
           facts->cooperative_matrix ? "VK_KHR_cooperative_matrix, MxNxK:" : "none exposed");
    for (uint32_t i = 0; i < facts->matrix_count; i++) {
        printf("   %-17s ", "");
        print_matrix(&facts->matrices[i]);
    }
}

static void print_text(const struct facts *facts)
{
    char version[48];
    version_text(facts->listed.api_version, version);
    printf("%" PRIu32 "  %s\n", facts->index, facts->listed.name);
    printf("   driver            %s, %s (driver version %" PRIu32 ")\n", facts->listed.driver,
           facts->listed.driver_info, facts->listed.driver_version);
    printf("   type, Vulkan      %s, %s\n", type_name(facts->listed.type), version);
    if (facts->unusable) {
        printf("   not usable        %s\n", facts->unusable);
        return;
    }
    printf("   subgroup size     %" PRIu32 "\n", facts->subgroup_size);
    printf("   limits            %" PRIu32 " bytes of shared memory, %" PRIu32 " invocations, %" PRIu64
           " bytes in a descriptor\n",
           facts->shared_bytes, facts->max_invocations, facts->max_range);
    printf("   tensors by        addresses: %s, push descriptors: %s\n", yes_no(facts->enabled.buffer_device_address),
           yes_no(facts->enabled.push_descriptor));
    printf("   features          subgroup size control: %s; float controls: %s\n",
           yes_no(facts->enabled.subgroup_size_control), yes_no(facts->enabled.shader_float_controls));
    print_matrices(facts);
    for (unsigned i = 0; i < facts->unit_count; i++)
        printf("   %-17s %s: %s%s\n", i ? "" : "units", facts->units[i].name, unit_states[facts->units[i].state],
               facts->units[i].reason);
    for (unsigned i = 0; i < SAMPLES; i++) {
        const char *kernel = chosen_kernel(&facts->reports[i]);
        printf("   %-17s %-25s %s\n", i ? "" : "kernels", samples[i].name,
               kernel ? kernel : "none; see `vkattn explain`");
    }
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void json_units(struct json *json, const struct facts *facts)
{
    static const char *const states[] = {"untested", "right", "off"};
    json_open_array(json, "units");
    for (unsigned i = 0; i < facts->unit_count; i++) {
        json_open_object(json, NULL);
        json_string(json, "name", facts->units[i].name);
        json_string(json, "state", states[facts->units[i].state]);
        json_string(json, "reason", facts->units[i].reason[0] ? facts->units[i].reason : NULL);
        json_close(json);
    }
    json_close(json);
}

static void json_kernels(struct json *json, const struct facts *facts)
{
    json_open_array(json, "kernels");
    for (unsigned i = 0; i < SAMPLES; i++) {
        json_open_object(json, NULL);
        json_string(json, "problem", samples[i].name);
        json_string(json, "kernel", chosen_kernel(&facts->reports[i]));
        json_close(json);
    }
    json_close(json);
}

static void json_matrices(struct json *json, const struct facts *facts)
{
    json_open_array(json, "cooperative_matrices");
    for (uint32_t i = 0; i < facts->matrix_count; i++) {
        const VkCooperativeMatrixPropertiesKHR *matrix = &facts->matrices[i];
        char text[24];
        json_open_object(json, NULL);
        json_unsigned(json, "m", matrix->MSize);
        json_unsigned(json, "n", matrix->NSize);
        json_unsigned(json, "k", matrix->KSize);
        json_string(json, "a", component_name((uint32_t)matrix->AType, text));
        json_string(json, "b", component_name((uint32_t)matrix->BType, text));
        json_string(json, "c", component_name((uint32_t)matrix->CType, text));
        json_string(json, "result", component_name((uint32_t)matrix->ResultType, text));
        json_bool(json, "saturating", matrix->saturatingAccumulation != VK_FALSE);
        json_string(json, "scope", scope_name((uint32_t)matrix->scope));
        json_close(json);
    }
    json_close(json);
}

static void json_limits(struct json *json, const struct facts *facts)
{
    json_unsigned(json, "subgroup_size", facts->subgroup_size);
    json_unsigned(json, "shared_memory", facts->shared_bytes);
    json_unsigned(json, "max_invocations", facts->max_invocations);
    json_unsigned(json, "max_storage_buffer_range", facts->max_range);
    json_bool(json, "buffer_device_address", facts->enabled.buffer_device_address);
    json_bool(json, "push_descriptor", facts->enabled.push_descriptor);
    json_bool(json, "subgroup_size_control", facts->enabled.subgroup_size_control);
    json_bool(json, "shader_float_controls", facts->enabled.shader_float_controls);
    json_bool(json, "cooperative_matrix", facts->cooperative_matrix);
    json_matrices(json, facts);
}

static void json_device(struct json *json, const struct facts *facts)
{
    char version[48];
    version_text(facts->listed.api_version, version);
    json_open_object(json, NULL);
    json_unsigned(json, "index", facts->index);
    json_string(json, "name", facts->listed.name);
    json_string(json, "driver", facts->listed.driver);
    json_string(json, "driver_info", facts->listed.driver_info);
    json_unsigned(json, "driver_version", facts->listed.driver_version);
    json_string(json, "api_version", version);
    json_string(json, "type", type_name(facts->listed.type));
    json_string(json, "unusable", facts->unusable);
    if (!facts->unusable) {
        json_limits(json, facts);
        json_units(json, facts);
        json_kernels(json, facts);
    }
    json_close(json);
}

/* ---- The command ----------------------------------------------------------------------------------------------- */

/* Every device that there is; NULL, after a complaint, where there is none. */
static vkattn_listed *list(uint32_t *count)
{
    vkattn_status status = vkattn_list(NULL, 0, count);
    if (status == VKATTN_OK && *count == 0) {
        command_complain("no Vulkan device was found");
        return NULL;
    }
    vkattn_listed *listed = status == VKATTN_OK ? calloc(*count, sizeof *listed) : NULL;
    const uint32_t capacity = *count;
    if (listed)
        status = vkattn_list(listed, capacity, count);
    if (*count > capacity)
        *count = capacity;
    if (status == VKATTN_OK && listed)
        return listed;
    free(listed);
    command_fail(status == VKATTN_OK ? VKATTN_NO_MEMORY : status);
    return NULL;
}

static int show_all(bool as_json, bool verbose)
{
    uint32_t count = 0;
    unsigned usable = 0;
    vkattn_listed *listed = list(&count);
    if (!listed)
        return COMMAND_NO_DEVICE;
    struct json json = {.file = stdout};
    if (as_json) {
        json_open_object(&json, NULL);
        json_open_array(&json, "devices");
    }
    for (uint32_t i = 0; i < count; i++) {
        struct facts facts;
        ask(i, &listed[i], verbose, &facts);
        usable += facts.unusable == NULL;
        if (as_json)
            json_device(&json, &facts);
        else
            print_text(&facts);
        free(facts.matrices);
    }
    if (as_json) {
        json_close(&json);
        json_close(&json);
    }
    free(listed);
    return usable ? COMMAND_OK : COMMAND_NO_DEVICE;
}

int command_devices(int argc, char **argv)
{
    static const struct option known[] = {
        {"json", no_argument, NULL, 'j'},
        {"verbose", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool as_json = false, verbose = false;
    int c;
    optind = 1;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == 'h') {
            fputs("Usage: vkattn devices [--json] [--verbose]\n"
                  "List Vulkan devices: what they can do, and which kernel each of a few problems gets.\n\n"
                  "  --json      print JSON\n  --verbose   print the library's messages\n\n" COMMAND_EXIT_HELP,
                  stdout);
            return COMMAND_OK;
        }
        if (c == '?')
            return COMMAND_USAGE;
        as_json |= c == 'j';
        verbose |= c == 'v';
    }
    if (optind < argc) {
        command_complain("unexpected argument '%s'", argv[optind]);
        return COMMAND_USAGE;
    }
    return show_all(as_json, verbose);
}

/* vkattn kernels: the catalogue, and with --stats what a driver's compiler made of each kernel
 * (VK_KHR_pipeline_executable_properties), its key loop counted by class of instruction. */
#include <volk.h>

#include "cases.h"
#include "command.h"
#include "json.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Counting a disassembly ------------------------------------------------------------------------------------- */

/* Classes of AMD's instructions; the first prefix that fits decides. */
static const struct {
    const char *prefix;
    unsigned class;
} prefixes[] = {
    {"v_fma", 1},   {"v_fmac", 1}, {"v_pk_fma", 1}, {"v_dual_fma", 1}, {"v_ma", 1},      {"v_wmma", 8},
    {"v_swmma", 8}, {"v_", 0},     {"s_load", 3},   {"s_buffer", 3},   {"s_barrier", 6}, {"s_", 2},
    {"ds_", 4},     {"global", 5}, {"buffer", 5},   {"flat", 5},       {"scratch", 7},   {"image", 5},
};
enum { OTHER_VECTOR, MULTIPLY_ADD, SCALAR, SCALAR_LOAD, SHARED, VECTOR_MEMORY, BARRIER, SCRATCH, MATRIX, CLASSES };
static const char *const class_names[CLASSES] = {"other vector", "multiply-add", "scalar",  "scalar load", "shared",
                                                 "memory",       "barrier",      "scratch", "matrix"};

/* Cycles for which a product of matrices keeps RDNA3's vector unit, in which it issues an instruction each. */
enum { MATRIX_CYCLES = 32 };

enum { MOST_INSTRUCTIONS = 65536, MOST_BLOCKS = 4096 };

struct listing {
    unsigned char class[MOST_INSTRUCTIONS];
    unsigned count;
    unsigned blocks[MOST_BLOCKS];  /* the first instruction of BBn */
    unsigned loop_begin, loop_end; /* the largest innermost backward jump: [begin, end) */
};

static unsigned class_of(const char *instruction)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(instruction, prefixes[i].prefix, strlen(prefixes[i].prefix)) == 0)
            return prefixes[i].class;
    return CLASSES;
}

static unsigned block_number(const char *text)
{
    const unsigned long number = strtoul(text + 2, NULL, 10);
    return number < MOST_BLOCKS ? (unsigned)number : MOST_BLOCKS - 1;
}

static bool has_matrix(const struct listing *listing, unsigned begin, unsigned end)
{
    for (unsigned i = begin; i < end; i++)
        if (listing->class[i] == MATRIX)
            return true;
    return false;
}

/* A line of ACO's listing is "BB12:" or an indented instruction with operands. */
static void take_line(struct listing *listing, const char *line)
{
    if (strncmp(line, "BB", 2) == 0) {
        listing->blocks[block_number(line)] = listing->count;
        return;
    }
    while (isspace((unsigned char)*line))
        line++;
    const unsigned class = class_of(line);
    if (class == CLASSES || listing->count == MOST_INSTRUCTIONS)
        return;
    const char *target =
        strncmp(line, "s_cbranch", 9) == 0 || strncmp(line, "s_branch", 8) == 0 ? strstr(line, "BB") : NULL;
    listing->class[listing->count++] = (unsigned char)class;
    const unsigned begin = target ? listing->blocks[block_number(target)] : listing->count;
    const unsigned length = listing->count - begin, best = listing->loop_end - listing->loop_begin;
    /* A loop round the one that was found adds little to it, or is another. */
    const bool around = best > 0 && begin <= listing->loop_begin && length < 2 * best;
    /* Where matrices are multiplied, that is the loop, however long another is. */
    const bool new_has = has_matrix(listing, begin, listing->count);
    const bool old_has = has_matrix(listing, listing->loop_begin, listing->loop_end);
    const bool taken = new_has == old_has ? length > best && !around : new_has;
    if (begin + 1 < listing->count && taken) {
        listing->loop_begin = begin;
        listing->loop_end = listing->count;
    }
}

static void read_listing(struct listing *listing, const char *text)
{
    memset(listing, 0, sizeof *listing);
    for (unsigned i = 0; i < MOST_BLOCKS; i++)
        listing->blocks[i] = MOST_INSTRUCTIONS; /* not seen yet: a jump to it goes forward */
    while (*text) {
        const size_t length = strcspn(text, "\n");
        char line[200];
        snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1), text);
        take_line(listing, line);
        text += length + (text[length] == '\n');
    }
}

static void count_loop(const struct listing *listing, unsigned counts[CLASSES])
{
    memset(counts, 0, CLASSES * sizeof *counts);
    for (unsigned i = listing->loop_begin; i < listing->loop_end; i++)
        counts[listing->class[i]]++;
}

/* ---- What the driver says --------------------------------------------------------------------------------------- */

static double statistic_value(const VkPipelineExecutableStatisticKHR *s)
{
    switch (s->format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
        return s->value.b32;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
        return (double)s->value.i64;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
        return (double)s->value.u64;
    default:
        return s->value.f64;
    }
}

static void show_statistics(VkDevice device, VkPipeline pipeline, struct json *json)
{
    const VkPipelineExecutableInfoKHR info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                              .pipeline = pipeline};
    VkPipelineExecutableStatisticKHR statistics[32];
    uint32_t count = 32;
    for (uint32_t i = 0; i < count; i++)
        statistics[i] =
            (VkPipelineExecutableStatisticKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
    if (vkGetPipelineExecutableStatisticsKHR(device, &info, &count, statistics) < 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (json)
            json_number(json, statistics[i].name, statistic_value(&statistics[i]));
        else
            printf("  %s %.10g%s", statistics[i].name, statistic_value(&statistics[i]), i + 1 < count ? "," : "\n");
}

/* The text of the representation that is called assembly; NULL when there is none. Free it. */
static char *assembly(VkDevice device, VkPipeline pipeline)
{
    const VkPipelineExecutableInfoKHR info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                              .pipeline = pipeline};
    VkPipelineExecutableInternalRepresentationKHR all[8];
    uint32_t count = 8;
    for (uint32_t i = 0; i < count; i++)
        all[i] = (VkPipelineExecutableInternalRepresentationKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR};
    if (vkGetPipelineExecutableInternalRepresentationsKHR(device, &info, &count, all) != VK_SUCCESS || count == 0)
        return NULL;
    for (uint32_t i = 0; i < count; i++)
        all[i].pData = calloc(all[i].dataSize + 1, 1);
    const VkResult result = vkGetPipelineExecutableInternalRepresentationsKHR(device, &info, &count, all);
    char *text = NULL;
    for (uint32_t i = 0; i < count; i++) {
        if (result == VK_SUCCESS && all[i].isText && strstr(all[i].name, "ssembly"))
            text = all[i].pData;
        else
            free(all[i].pData);
    }
    return text;
}

static void show_loop(VkDevice device, VkPipeline pipeline, struct json *json)
{
    char *text = assembly(device, pipeline);
    struct listing *listing = malloc(sizeof *listing);
    unsigned counts[CLASSES];
    if (text && listing) {
        read_listing(listing, text);
        count_loop(listing, counts);
        const unsigned vector = counts[OTHER_VECTOR] + counts[MULTIPLY_ADD];
        const double share = vector ? 100.0 * counts[MULTIPLY_ADD] / vector : 0;
        const double matrix = MATRIX_CYCLES * counts[MATRIX], matrix_share = 100.0 * matrix / (matrix + vector);
        if (json)
            json_open_object(json, "key_loop");
        else
            printf("  key loop:");
        for (unsigned i = 0; i < CLASSES; i++)
            if (json)
                json_unsigned(json, class_names[i], counts[i]);
            else
                printf(" %u %s,", counts[i], class_names[i]);
        if (json) {
            json_number(json, "multiply-add share of vector, percent", share);
            if (counts[MATRIX])
                json_number(json, "matrix share of vector cycles, percent", matrix_share);
            json_close(json);
        } else {
            printf(" multiply-add %.1f%% of vector", share);
            if (counts[MATRIX])
                printf(", matrix %.1f%% of its cycles", matrix_share);
            printf("\n");
        }
    }
    free(listing);
    free(text);
}

static vkattn_status show_case(vkattn_context *context, const struct bench_case *bench_case,
                               const vkattn_options *options, struct json *json)
{
    vkattn_report report;
    vkattn_plan *plan;
    vkattn_status status = vkattn_explain(context->vkattn, &bench_case->problem, options, &report);
    if (status == VKATTN_OK)
        status = vkattn_plan_create(context->vkattn, &bench_case->problem, options, &plan);
    if (status != VKATTN_OK)
        return status;
    for (uint32_t step = 0; vkattn_plan_pipeline(plan, step); step++) {
        if (json) {
            json_open_object(json, NULL);
            json_string(json, "case", bench_case->name);
            json_string(json, "kernel", vkattn_plan_kernel(plan));
            json_unsigned(json, "step", step);
        } else {
            printf("%s: %s (%s), step %u of %u\n", bench_case->name, vkattn_plan_kernel(plan), report.tile, step + 1,
                   report.step_count);
        }
        show_statistics(context->device, vkattn_plan_pipeline(plan, step), json);
        show_loop(context->device, vkattn_plan_pipeline(plan, step), json);
        if (json)
            json_close(json);
    }
    vkattn_plan_destroy(plan);
    return VKATTN_OK;
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

struct kernels_options {
    const char *device, *cases;
    vkattn_options plan;
    bool stats, json, verbose;
};

static int show_all(const struct kernels_options *options, vkattn_context *context)
{
    struct json json = {.file = stdout};
    if (options->json) {
        json_open_object(&json, NULL);
        json_string(&json, "device", context->listed.name);
        json_string(&json, "driver_info", context->listed.driver_info);
        json_open_array(&json, "pipelines");
    } else {
        printf("%s, %s\n", context->listed.name, context->listed.driver_info);
    }
    for (unsigned i = 0; i < BENCH_CASES; i++) {
        if (!cases_wants(options->cases, &bench_cases[i]))
            continue;
        command_progress("compiling %s ...", bench_cases[i].name);
        if (show_case(context, &bench_cases[i], &options->plan, options->json ? &json : NULL) != VKATTN_OK)
            command_complain("%s is left out: %s", bench_cases[i].name, vkattn_last_error());
    }
    command_progress(NULL);
    if (options->json) {
        json_close(&json);
        json_close(&json);
    }
    return COMMAND_OK;
}

static int show_stats(const struct kernels_options *options)
{
    const vkattn_open_info info = {
        .device = options->device, .statistics = 1, .message = options->verbose ? command_message : NULL};
    vkattn_context *context;
    int exit_status = command_open(&info, options->plan.kernel, &context);
    if (exit_status == COMMAND_OK) {
        exit_status = show_all(options, context);
        vkattn_close(context);
    }
    return exit_status;
}

static const char usage[] =
    "Usage: vkattn kernels [--stats [--device N|NAME] [--kernel NAME] [--access address|descriptor] [--case TEXT,...]\n"
    "                      [--json]] [--verbose]\n"
    "\n"
    "List the kernels of the catalogue, one name a line. --stats: compile the problems of `vkattn bench` (whose name "
    "holds\n"
    "TEXT) and print what the driver tells of each pipeline, and the instructions of its largest loop where the "
    "driver\n"
    "shows AMD's assembly; needs VK_KHR_pipeline_executable_properties.\n"
    "\n" COMMAND_EXIT_HELP;

static bool take_option(int option, const char *value, struct kernels_options *options)
{
    switch (option) {
    case 's':
        options->stats = true;
        return true;
    case 'd':
        options->device = value;
        return true;
    case 'k':
        options->plan.kernel = value;
        return true;
    case 'c':
        options->cases = value;
        return cases_check_wants(value);
    case 'j':
        options->json = true;
        return true;
    case 'v':
        options->verbose = true;
        return true;
    case 'a':
        if (command_parse_access(value, &options->plan.access))
            return true;
        command_complain("option --access: '%s' should be address or descriptor", value);
        return false;
    default:
        return false;
    }
}

int command_kernels(int argc, char **argv)
{
    static const struct option longs[] = {{"stats", no_argument, NULL, 's'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"kernel", required_argument, NULL, 'k'},
                                          {"case", required_argument, NULL, 'c'},
                                          {"access", required_argument, NULL, 'a'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"verbose", no_argument, NULL, 'v'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct kernels_options options = {0};
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return COMMAND_OK;
        }
        if (!take_option(option, optarg, &options))
            return COMMAND_USAGE;
    }
    if (optind < argc) {
        command_complain("unexpected argument '%s'", argv[optind]);
        return COMMAND_USAGE;
    }
    if (options.stats)
        return show_stats(&options);
    for (uint32_t i = 0; vkattn_kernel_name(i); i++)
        if (vkattn_kernel_missing(i))
            printf("%s (not in this build: %s)\n", vkattn_kernel_name(i), vkattn_kernel_missing(i));
        else
            puts(vkattn_kernel_name(i));
    return COMMAND_OK;
}

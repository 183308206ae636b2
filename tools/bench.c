/* vkattn bench: prefill and decode lines, interleaved with the probe; medians and ratios within one run. */
#include "cases.h"
#include "command.h"
#include "hostcost.h"
#include "json.h"
#include "probe.h"
#include "report.h"
#include "timing.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vkattn/reference.h>

enum { MOST_ROUNDS = 101, DEFAULT_ROUNDS = 9 };

struct bench_options {
    const char *device, *kernel, *prefix;
    vkattn_access access;
    unsigned rounds;
    bool json, verbose;
};

/* One case that runs, and its samples by round. */
struct line {
    const struct bench_case *bench_case;
    struct session *session;
    vkattn_report report;
    double first; /* processor seconds to the first result: planning, compilation, copies of the tensors, one run */
    double device[MOST_ROUNDS], cpu[MOST_ROUNDS];
};

struct bench {
    const struct bench_options *options;
    vkattn_context *context;
    struct probe *probe;
    double probe_device[MOST_ROUNDS], probe_cpu[MOST_ROUNDS];
    struct hostcost host;
    struct line lines[BENCH_CASES];
    unsigned line_count;
};

/* ---- Data ------------------------------------------------------------------------------------------------------ */

/* Uniform in -1 .. 1; a generator of its own, so that every machine measures the same numbers. */
static float next_value(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(*state >> 40) * 0x1p-23 - 1.0);
}

static bool make_blob(struct blob *blob, vkattn_dtype type, uint64_t elements, uint64_t *state)
{
    const size_t size = vkattn_dtype_size(type);
    blob->size = (size_t)elements * size;
    blob->data = malloc(blob->size);
    for (uint64_t i = 0; blob->data && i < elements; i++)
        vkattn_encode(type, next_value(state), (char *)blob->data + i * size);
    return blob->data != NULL;
}

static bool make_blobs(const vkattn_problem *p, struct blob blobs[BLOB_COUNT])
{
    const uint64_t kv_heads = p->kv_heads ? p->kv_heads : p->heads;
    uint64_t state = 1;
    return make_blob(&blobs[BLOB_Q], p->q_type, (uint64_t)p->heads * p->len_q * p->dim_qk, &state) &&
           make_blob(&blobs[BLOB_K], p->kv_type, kv_heads * p->len_kv * p->dim_qk, &state) &&
           make_blob(&blobs[BLOB_V], p->kv_type, kv_heads * p->len_kv * p->dim_qk, &state) &&
           make_blob(&blobs[BLOB_O], p->o_type, (uint64_t)p->heads * p->len_q * p->dim_qk, &state);
}

static vkattn_status open_line(struct bench *bench, const struct bench_case *bench_case)
{
    struct blob blobs[BLOB_COUNT] = {0};
    struct line *line = &bench->lines[bench->line_count];
    const vkattn_options options = {.kernel = bench->options->kernel, .access = bench->options->access};
    vkattn_status status = vkattn_explain(bench->context->vkattn, &bench_case->problem, &options, &line->report);
    command_progress("preparing %s ...", bench_case->name);
    if (status == VKATTN_OK && !make_blobs(&bench_case->problem, blobs))
        status = vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for the tensors");
    const double start = timing_cpu_seconds();
    if (status == VKATTN_OK)
        status = session_open(bench->context, &bench_case->problem, &options, blobs, &line->session);
    line->first = timing_cpu_seconds() - start;
    line->bench_case = bench_case;
    for (unsigned i = 0; i < BLOB_COUNT; i++)
        free(blobs[i].data);
    if (status == VKATTN_OK)
        bench->line_count++;
    return status;
}

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

static vkattn_status one_round(struct bench *bench, unsigned round)
{
    struct sample sample;
    vkattn_status status = probe_run(bench->probe, &sample);
    bench->probe_device[round] = sample.device;
    bench->probe_cpu[round] = sample.cpu;
    for (unsigned i = 0; status == VKATTN_OK && i < bench->line_count; i++) {
        struct line *line = &bench->lines[i];
        command_progress("round %u of %u: %s ...", round + 1, bench->options->rounds, line->bench_case->name);
        status = session_run(line->session, &sample);
        line->device[round] = sample.device;
        line->cpu[round] = sample.cpu;
    }
    return status;
}

static vkattn_status measure(struct bench *bench)
{
    /* The first round compiles what planning left (llvmpipe: the machine code) and warms caches; the second overwrites
     * it. */
    vkattn_status status = one_round(bench, 0);
    for (unsigned i = 0; status == VKATTN_OK && i < bench->line_count; i++)
        bench->lines[i].first += bench->lines[i].cpu[0];
    for (unsigned round = 0; status == VKATTN_OK && round < bench->options->rounds; round++)
        status = one_round(bench, round);
    command_progress(NULL);
    return status;
}

/* ---- Printing -------------------------------------------------------------------------------------------------- */

static void print_lines(struct bench *bench, double probe_device, double probe_cpu)
{
    const unsigned rounds = bench->options->rounds;
    const bool by_cpu = bench->context->listed.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
    printf("%s, %s %s; medians of %u interleaved rounds\n", bench->context->listed.name, bench->context->listed.driver,
           bench->context->listed.driver_info, rounds);
    printf("probe: %.3g ms, %.4g GFLOP/s; ratios are by %s\n", probe_device * 1e3, probe_flops() / probe_device / 1e9,
           by_cpu ? "processor time, since the device is this processor" : "device time");
    printf("%-24s %-10s %10s %10s %9s %8s %12s\n", "case", "kernel", "ms", "cpu ms", "GFLOP/s", "x probe",
           "first cpu ms");
    for (unsigned i = 0; i < bench->line_count; i++) {
        struct line *line = &bench->lines[i];
        const double device = timing_median(line->device, rounds), cpu = timing_median(line->cpu, rounds);
        const double ratio = by_cpu ? probe_cpu / cpu : probe_device / device;
        printf("%-24s %-10s %10.3f %10.3f %9.4g %8.3f %12.1f\n", line->bench_case->name,
               line->report.candidates[line->report.chosen].kernel, device * 1e3, cpu * 1e3,
               line->report.flops / device / 1e9, ratio * line->report.flops / probe_flops(), line->first * 1e3);
    }
}

static void print_host(const struct hostcost *host)
{
    printf("host: a recording takes %.2f us, a plan whose pipelines exist %.2f us; medians of 10,000\n",
           host->record * 1e6, host->plan * 1e6);
}

static void print_json(struct bench *bench, double probe_device, double probe_cpu)
{
    const unsigned rounds = bench->options->rounds;
    struct json json = {.file = stdout};
    json_open_object(&json, NULL);
    json_string(&json, "device", bench->context->listed.name);
    json_string(&json, "driver", bench->context->listed.driver);
    json_string(&json, "driver_info", bench->context->listed.driver_info);
    json_unsigned(&json, "rounds", rounds);
    json_number(&json, "probe_seconds", probe_device);
    json_number(&json, "probe_cpu_seconds", probe_cpu);
    json_number(&json, "probe_flops", probe_flops());
    json_number(&json, "record_seconds", bench->host.record);
    json_number(&json, "plan_seconds", bench->host.plan);
    json_open_array(&json, "lines");
    for (unsigned i = 0; i < bench->line_count; i++) {
        struct line *line = &bench->lines[i];
        json_open_object(&json, NULL);
        json_string(&json, "case", line->bench_case->name);
        json_string(&json, "kernel", line->report.candidates[line->report.chosen].kernel);
        json_string(&json, "tile", line->report.tile);
        json_number(&json, "seconds", timing_median(line->device, rounds));
        json_number(&json, "cpu_seconds", timing_median(line->cpu, rounds));
        json_number(&json, "flops", line->report.flops);
        json_number(&json, "first_cpu_seconds", line->first);
        json_close(&json);
    }
    json_close(&json);
    json_close(&json);
}

static int run_bench(struct bench *bench)
{
    vkattn_status status = probe_open(bench->context, &bench->probe);
    if (status != VKATTN_OK)
        return command_fail(status);
    for (unsigned i = 0; i < BENCH_CASES; i++) {
        if (bench->options->prefix && !strstr(bench_cases[i].name, bench->options->prefix))
            continue;
        status = open_line(bench, &bench_cases[i]);
        if (status != VKATTN_OK)
            command_complain("%s is left out: %s", bench_cases[i].name, vkattn_last_error());
    }
    if (bench->line_count == 0) {
        command_complain("no case is left to measure");
        return COMMAND_REFUSED;
    }
    status = measure(bench);
    const vkattn_options options = {.kernel = bench->options->kernel, .access = bench->options->access};
    if (status == VKATTN_OK)
        status = hostcost_measure(bench->context, &options, &bench->host);
    if (status != VKATTN_OK)
        return command_fail(status);
    const double device = timing_median(bench->probe_device, bench->options->rounds);
    const double cpu = timing_median(bench->probe_cpu, bench->options->rounds);
    (bench->options->json ? print_json : print_lines)(bench, device, cpu);
    if (!bench->options->json)
        print_host(&bench->host);
    return COMMAND_OK;
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "Usage: vkattn bench [--device N|NAME] [--kernel NAME] [--access address|descriptor] [--case TEXT] [--rounds N]\n"
    "                    [--json] [--verbose]\n"
    "\n"
    "Time prefill and decode problems, interleaved with a multiply-add probe, and print medians, GFLOP/s and the ratio "
    "to\n"
    "the probe. --case keeps the cases whose name holds TEXT.\n"
    "\n" COMMAND_EXIT_HELP;

enum { OPTION_DEVICE = 256, OPTION_KERNEL, OPTION_ACCESS, OPTION_CASE, OPTION_ROUNDS, OPTION_JSON, OPTION_VERBOSE };

static bool take_option(int option, const char *value, struct bench_options *options)
{
    int64_t number;
    switch (option) {
    case OPTION_DEVICE:
        options->device = value;
        return true;
    case OPTION_KERNEL:
        options->kernel = value;
        return true;
    case OPTION_CASE:
        options->prefix = value;
        return true;
    case OPTION_JSON:
        options->json = true;
        return true;
    case OPTION_VERBOSE:
        options->verbose = true;
        return true;
    case OPTION_ACCESS:
        if (command_parse_access(value, &options->access))
            return true;
        command_complain("--access is \"%s\": must be address or descriptor", value);
        return false;
    case OPTION_ROUNDS:
        if (command_parse_integer(value, 1, MOST_ROUNDS, &number)) {
            options->rounds = (unsigned)number;
            return true;
        }
        command_complain("--rounds is \"%s\": must be 1 to %d", value, MOST_ROUNDS);
        return false;
    default:
        return false;
    }
}

/* False when the command ends now with *exit_status. */
static bool parse(int argc, char **argv, struct bench_options *options, int *exit_status)
{
    static const struct option longs[] = {{"device", required_argument, NULL, OPTION_DEVICE},
                                          {"kernel", required_argument, NULL, OPTION_KERNEL},
                                          {"access", required_argument, NULL, OPTION_ACCESS},
                                          {"case", required_argument, NULL, OPTION_CASE},
                                          {"rounds", required_argument, NULL, OPTION_ROUNDS},
                                          {"json", no_argument, NULL, OPTION_JSON},
                                          {"verbose", no_argument, NULL, OPTION_VERBOSE},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int option;
    *options = (struct bench_options){.rounds = DEFAULT_ROUNDS};
    optind = 1;
    *exit_status = COMMAND_USAGE;
    while ((option = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            *exit_status = COMMAND_OK;
            return false;
        }
        if (!take_option(option, optarg, options))
            return false;
    }
    if (optind < argc)
        command_complain("\"%s\" is not an option; see vkattn bench --help", argv[optind]);
    return optind == argc;
}

int command_bench(int argc, char **argv)
{
    struct bench_options options;
    int exit_status;
    if (!parse(argc, argv, &options, &exit_status))
        return exit_status;
    struct bench *bench = calloc(1, sizeof *bench);
    if (!bench) {
        command_complain("out of memory");
        return COMMAND_REFUSED;
    }
    bench->options = &options;
    exit_status = command_open(options.device, options.verbose, &bench->context);
    if (exit_status == COMMAND_OK) {
        exit_status = run_bench(bench);
        for (unsigned i = 0; i < bench->line_count; i++)
            session_close(bench->lines[i].session);
        probe_close(bench->probe);
        vkattn_close(bench->context);
    }
    free(bench);
    return exit_status;
}

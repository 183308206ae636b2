/* vkattn bench: prefill and decode lines, interleaved with the probes; medians and ratios within one run. */
#define _GNU_SOURCE /* getopt_long, clock_gettime */
#include "calibrate.h"
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
#include <time.h>
#include <vkattn/reference.h>

enum { MOST_ROUNDS = 101, DEFAULT_ROUNDS = 9, CALIBRATE_ROUNDS = 3 };

struct bench_options {
    const char *device, *kernel, *cases, *tuning;
    vkattn_access access;
    unsigned rounds, seconds;
    bool roofline, calibrate, json, verbose;
};

/* One case that runs, and its samples by round. */
struct line {
    const struct bench_case *bench_case;
    struct session *session;
    vkattn_report report;
    double first; /* processor seconds to the first result: planning, compilation, copies of the tensors, one run */
    double device[MOST_ROUNDS], cpu[MOST_ROUNDS];
};

/* A probe that is open, or why it is not. */
struct rate {
    struct probe *probe; /* NULL: it was not asked for, or cannot run */
    char reason[160];
    double device[MOST_ROUNDS], cpu[MOST_ROUNDS];
};

struct bench {
    const struct bench_options *options;
    vkattn_context *context;
    unsigned rounds; /* those of the options, or those that there was time for */
    double start;
    bool by_cpu; /* the device is this processor: ratios are by its time */
    struct rate rates[PROBE_KINDS];
    struct hostcost host;
    struct line lines[BENCH_CASES];
    unsigned line_count;
};

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

static vkattn_status open_line(struct bench *bench, const struct bench_case *bench_case)
{
    struct blob blobs[BLOB_COUNT] = {0};
    struct line *line = &bench->lines[bench->line_count];
    const vkattn_options options = {.kernel = bench->options->kernel, .access = bench->options->access};
    vkattn_status status = vkattn_explain(bench->context->vkattn, &bench_case->problem, &options, &line->report);
    command_progress("preparing %s ...", bench_case->name);
    if (status == VKATTN_OK && !cases_make_blobs(&bench_case->problem, blobs))
        status = vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for the tensors");
    const double start = timing_cpu_seconds();
    if (status == VKATTN_OK)
        status = session_open(bench->context, &bench_case->problem, &options, blobs, &line->session);
    line->first = timing_cpu_seconds() - start;
    line->bench_case = bench_case;
    cases_free_blobs(blobs);
    if (status == VKATTN_OK)
        bench->line_count++;
    return status;
}

static vkattn_status one_round(struct bench *bench, unsigned round)
{
    struct sample sample;
    vkattn_status status = VKATTN_OK;
    for (unsigned i = 0; status == VKATTN_OK && i < PROBE_KINDS; i++) {
        struct rate *rate = &bench->rates[i];
        if (!rate->probe)
            continue;
        status = probe_run(rate->probe, &sample);
        rate->device[round] = sample.device;
        rate->cpu[round] = sample.cpu;
    }
    for (unsigned i = 0; status == VKATTN_OK && i < bench->line_count; i++) {
        struct line *line = &bench->lines[i];
        command_progress("round %u of %u: %s ...", round + 1, bench->rounds, line->bench_case->name);
        status = session_run(line->session, &sample);
        line->device[round] = sample.device;
        line->cpu[round] = sample.cpu;
    }
    return status;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether the time that the options give is over, or would be in so many seconds. */
static bool out_of_time(const struct bench *bench, double more)
{
    return bench->options->seconds && now() - bench->start + more > bench->options->seconds;
}

/* The first run of each compiles what planning left (llvmpipe: the machine code) and warms caches. Where that takes the
 * time, the lines behind are left out. */
static vkattn_status warm(struct bench *bench)
{
    struct sample sample;
    vkattn_status status = VKATTN_OK;
    for (unsigned i = 0; status == VKATTN_OK && i < bench->line_count; i++) {
        struct line *line = &bench->lines[i];
        if (i > 0 && out_of_time(bench, 0.6 * bench->options->seconds)) {
            command_complain("%s and what follows are left out, for want of time", line->bench_case->name);
            while (bench->line_count > i)
                session_close(bench->lines[--bench->line_count].session);
            break;
        }
        command_progress("first run of %s ...", line->bench_case->name);
        status = session_run(line->session, &sample);
        line->first += sample.cpu;
    }
    return status;
}

static vkattn_status measure(struct bench *bench)
{
    vkattn_status status = warm(bench);
    unsigned round = 0;
    double length = 0; /* of the last round: one that would not end in time is not begun */
    while (status == VKATTN_OK && round < bench->rounds && !(round && out_of_time(bench, length))) {
        const double start = now();
        status = one_round(bench, round++);
        length = now() - start;
    }
    bench->rounds = round;
    command_progress(NULL);
    return status;
}

/* ---- Results --------------------------------------------------------------------------------------------------- */

/* The seconds that ratios are of. */
static double counted(const struct bench *bench, double *device, double *cpu)
{
    return timing_median(bench->by_cpu ? cpu : device, bench->rounds);
}

/* Work per counted second of a probe; 0 where it did not run. */
static double rate_of(struct bench *bench, enum probe_kind kind)
{
    struct rate *rate = &bench->rates[kind];
    return rate->probe ? probe_work(rate->probe) / counted(bench, rate->device, rate->cpu) : 0;
}

/* A few queries wait for K and V, many for arithmetic. */
static bool is_decoding(const vkattn_problem *problem)
{
    return problem->len_q <= 8;
}

static double kv_bytes(const vkattn_problem *p)
{
    const double heads = p->kv_heads ? p->kv_heads : p->heads, batch = p->batch ? p->batch : 1;
    return batch * heads * p->len_kv * 2 * p->dim_qk * (double)vkattn_dtype_size(p->kv_type);
}

/* The rate that bounds a line, and what of its work that counts. Matrix units bound the kernels that use them. */
static enum probe_kind roof_of(struct bench *bench, const struct line *line, double *work)
{
    const char *kernel = line->report.candidates[line->report.chosen].kernel;
    const bool decoding = is_decoding(&line->bench_case->problem);
    *work = decoding ? kv_bytes(&line->bench_case->problem) : line->report.flops;
    if (decoding)
        return PROBE_COPY;
    return strstr(kernel, "coopmat") && bench->rates[PROBE_MATRIX].probe ? PROBE_MATRIX : PROBE_F32;
}

/* Of the roof's rate; infinite where that is not known. */
static double fraction_of_roof(struct bench *bench, struct line *line, enum probe_kind *roof)
{
    double work;
    *roof = roof_of(bench, line, &work);
    return work / counted(bench, line->device, line->cpu) / rate_of(bench, *roof);
}

/* ---- Printing -------------------------------------------------------------------------------------------------- */

static void print_rate(struct bench *bench, enum probe_kind kind)
{
    char amount[32];
    if (bench->rates[kind].probe)
        printf("%s: %s/s%s\n", probe_name(kind), command_amount(rate_of(bench, kind), probe_unit(kind), amount),
               kind == PROBE_COPY ? ", read and written" : "");
    else
        printf("%s: not measured: %s\n", probe_name(kind), bench->rates[kind].reason);
}

static void print_roofline(struct bench *bench)
{
    for (unsigned kind = PROBE_F32; kind < PROBE_KINDS; kind++)
        print_rate(bench, kind);
    printf(
        "these are %s; \"of roof\" is a part of the rate that bounds the case: of decoding, K and V read once against "
        "the copy\n",
        bench->by_cpu ? "per second of processor time" : "per second");
    if (!vkattn_maps_near(bench->context))
        puts("tensors lie in the host's memory: the host cannot map the device's");
}

static void print_lines(struct bench *bench)
{
    const unsigned rounds = bench->rounds;
    struct rate *base = &bench->rates[PROBE_BASE];
    const double probe_device = timing_median(base->device, rounds);
    printf("%s, %s %s; medians of %u interleaved rounds\n", bench->context->listed.name, bench->context->listed.driver,
           bench->context->listed.driver_info, rounds);
    printf("probe: %.3g ms, %.4g GFLOP/s; ratios are by %s\n", probe_device * 1e3,
           probe_work(base->probe) / probe_device / 1e9,
           bench->by_cpu ? "processor time, since the device is this processor" : "device time");
    if (bench->options->roofline)
        print_roofline(bench);
    printf("%-24s %-10s %10s %10s %9s %8s %12s", "case", "kernel", "ms", "cpu ms", "GFLOP/s", "x probe",
           "first cpu ms");
    puts(bench->options->roofline ? "  of roof" : "");
    for (unsigned i = 0; i < bench->line_count; i++) {
        struct line *line = &bench->lines[i];
        const double device = timing_median(line->device, rounds), cpu = timing_median(line->cpu, rounds);
        const double rate = line->report.flops / counted(bench, line->device, line->cpu);
        printf("%-24s %-10s %10.3f %10.3f %9.4g %8.3f %12.1f", line->bench_case->name,
               line->report.candidates[line->report.chosen].kernel, device * 1e3, cpu * 1e3,
               line->report.flops / device / 1e9, rate / rate_of(bench, PROBE_BASE), line->first * 1e3);
        if (bench->options->roofline) {
            enum probe_kind roof;
            const double fraction = fraction_of_roof(bench, line, &roof);
            if (bench->rates[roof].probe)
                printf("  %7.3f of %s", fraction, probe_name(roof));
            else
                printf("  %7s", "-");
        }
        putchar('\n');
    }
}

static void print_host(const struct hostcost *host)
{
    printf("host: a recording takes %.2f us, a plan whose pipelines exist %.2f us; medians of 10,000\n",
           host->record * 1e6, host->plan * 1e6);
}

static void json_rates(struct json *json, struct bench *bench)
{
    json_string(json, "rates_by", bench->by_cpu ? "processor time" : "device time");
    json_bool(json, "tensors_in_device_memory", vkattn_maps_near(bench->context) != 0);
    json_open_array(json, "rates");
    for (unsigned kind = PROBE_F32; kind < PROBE_KINDS; kind++) {
        json_open_object(json, NULL);
        json_string(json, "name", probe_name(kind));
        json_string(json, "unit", probe_unit(kind));
        if (bench->rates[kind].probe)
            json_number(json, "per_second", rate_of(bench, kind));
        else
            json_string(json, "missing", bench->rates[kind].reason);
        json_close(json);
    }
    json_close(json);
}

static void json_line(struct json *json, struct bench *bench, struct line *line)
{
    const unsigned rounds = bench->rounds;
    json_open_object(json, NULL);
    json_string(json, "case", line->bench_case->name);
    json_string(json, "kernel", line->report.candidates[line->report.chosen].kernel);
    json_string(json, "tile", line->report.tile);
    json_number(json, "seconds", timing_median(line->device, rounds));
    json_number(json, "cpu_seconds", timing_median(line->cpu, rounds));
    json_number(json, "flops", line->report.flops);
    json_number(json, "first_cpu_seconds", line->first);
    if (bench->options->roofline) {
        enum probe_kind roof;
        const double fraction = fraction_of_roof(bench, line, &roof);
        json_number(json, "kv_bytes", kv_bytes(&line->bench_case->problem));
        json_string(json, "roof", probe_name(roof));
        json_number(json, "fraction", fraction);
    }
    json_close(json);
}

static void print_json(struct bench *bench)
{
    const unsigned rounds = bench->rounds;
    struct rate *base = &bench->rates[PROBE_BASE];
    struct json json = {.file = stdout};
    json_open_object(&json, NULL);
    json_string(&json, "device", bench->context->listed.name);
    json_string(&json, "driver", bench->context->listed.driver);
    json_string(&json, "driver_info", bench->context->listed.driver_info);
    json_unsigned(&json, "rounds", rounds);
    json_number(&json, "probe_seconds", timing_median(base->device, rounds));
    json_number(&json, "probe_cpu_seconds", timing_median(base->cpu, rounds));
    json_number(&json, "probe_flops", probe_work(base->probe));
    json_number(&json, "record_seconds", bench->host.record);
    json_number(&json, "plan_seconds", bench->host.plan);
    if (bench->options->roofline)
        json_rates(&json, bench);
    json_open_array(&json, "lines");
    for (unsigned i = 0; i < bench->line_count; i++)
        json_line(&json, bench, &bench->lines[i]);
    json_close(&json);
    json_close(&json);
}

/* Those of the roofline may be missing; what ratios refer to may not. */
static vkattn_status open_probes(struct bench *bench)
{
    const unsigned kinds = bench->options->roofline ? PROBE_KINDS : PROBE_BASE + 1;
    for (unsigned kind = 0; kind < kinds; kind++) {
        struct rate *rate = &bench->rates[kind];
        const vkattn_status status = probe_open(bench->context, kind, &rate->probe);
        if (status != VKATTN_OK && (kind == PROBE_BASE || status == VKATTN_DEVICE_LOST))
            return status;
        if (status != VKATTN_OK)
            snprintf(rate->reason, sizeof rate->reason, "%s", vkattn_last_error());
    }
    return VKATTN_OK;
}

static int run_bench(struct bench *bench)
{
    bench->rounds = bench->options->rounds;
    bench->start = now();
    bench->by_cpu = bench->context->listed.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
    vkattn_status status = open_probes(bench);
    if (status != VKATTN_OK)
        return command_fail(status);
    for (unsigned i = 0; i < BENCH_CASES; i++) {
        if (!cases_wants(bench->options->cases, &bench_cases[i]))
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
    (bench->options->json ? print_json : print_lines)(bench);
    if (!bench->options->json)
        print_host(&bench->host);
    return COMMAND_OK;
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "Usage: vkattn bench [OPTION]...\n"
    "Time prefill and decode problems, interleaved with a multiply-add probe, and print medians, GFLOP/s and the ratio "
    "to\n"
    "the probe; \"first cpu ms\" is the processor time of planning, compiling, copying the tensors and one run.\n\n"
    "  --device N|NAME  a number of `vkattn devices`, or a part of a name; default: the best\n"
    "  --kernel NAME    use this forward kernel (fwd_...) of `vkattn kernels`\n"
    "  --access WAY     how tensors are reached: address or descriptor; default: the faster\n"
    "  --case TEXT,...  only cases whose name holds such a text\n"
    "  --rounds N       1 to 101; default 9, or 3 to calibrate\n"
    "  --roofline       measure what the device can do (multiply-adds in f32 and f16, matrix products, copies), and\n"
    "                   print each result as a part of the rate that bounds it\n"
    "  --calibrate      instead: run each case on every kernel that can, and print predicted beside measured time\n"
    "  --tuning FILE    choose tiles and kernels by this file of `vkattn tune`\n"
    "  --seconds N      end after about so many, with fewer rounds and cases\n"
    "  --json           print JSON\n"
    "  --verbose        print the library's messages\n"
    "  --help           print this text\n\n" COMMAND_EXIT_HELP;

enum {
    OPTION_DEVICE = 256,
    OPTION_KERNEL,
    OPTION_ACCESS,
    OPTION_CASE,
    OPTION_ROUNDS,
    OPTION_ROOFLINE,
    OPTION_CALIBRATE,
    OPTION_TUNING,
    OPTION_SECONDS,
    OPTION_JSON,
    OPTION_VERBOSE
};

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
        options->cases = value;
        return cases_check_wants(value);
    case OPTION_ROOFLINE:
        options->roofline = true;
        return true;
    case OPTION_CALIBRATE:
        options->calibrate = true;
        return true;
    case OPTION_TUNING:
        options->tuning = value;
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
        command_complain("option --access: '%s' should be address or descriptor", value);
        return false;
    case OPTION_SECONDS:
        if (command_parse_integer(value, 1, 86400, &number)) {
            options->seconds = (unsigned)number;
            return true;
        }
        command_complain("option --seconds: '%s' should be 1 to 86400", value);
        return false;
    case OPTION_ROUNDS:
        if (command_parse_integer(value, 1, MOST_ROUNDS, &number)) {
            options->rounds = (unsigned)number;
            return true;
        }
        command_complain("option --rounds: '%s' should be 1 to %d", value, MOST_ROUNDS);
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
                                          {"roofline", no_argument, NULL, OPTION_ROOFLINE},
                                          {"calibrate", no_argument, NULL, OPTION_CALIBRATE},
                                          {"tuning", required_argument, NULL, OPTION_TUNING},
                                          {"seconds", required_argument, NULL, OPTION_SECONDS},
                                          {"json", no_argument, NULL, OPTION_JSON},
                                          {"verbose", no_argument, NULL, OPTION_VERBOSE},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int option;
    *options = (struct bench_options){0};
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
    if (options->rounds == 0)
        options->rounds = options->calibrate ? CALIBRATE_ROUNDS : DEFAULT_ROUNDS;
    if (optind < argc)
        command_complain("unexpected argument '%s'", argv[optind]);
    else if (options->calibrate && (options->roofline || options->kernel))
        command_complain("option --calibrate goes without --%s", options->roofline ? "roofline" : "kernel");
    else
        return true;
    return false;
}

static int calibrate(const struct bench *bench)
{
    const struct bench_options *o = bench->options;
    const struct calibrate_options options = {
        .access = o->access, .cases = o->cases, .rounds = o->rounds, .seconds = o->seconds, .json = o->json};
    return calibrate_run(bench->context, &options);
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
    vkattn_open_info info = {
        .device = options.device, .float16 = options.roofline, .message = options.verbose ? command_message : NULL};
    exit_status = COMMAND_USAGE;
    if (command_read_tuning(options.tuning, &info))
        exit_status = command_open(&info, options.kernel, &bench->context);
    if (exit_status == COMMAND_OK) {
        exit_status = options.calibrate ? calibrate(bench) : run_bench(bench);
        for (unsigned i = 0; i < bench->line_count; i++)
            session_close(bench->lines[i].session);
        for (unsigned kind = 0; kind < PROBE_KINDS; kind++)
            probe_close(bench->rates[kind].probe);
        vkattn_close(bench->context);
    }
    command_free_tuning(&info);
    free(bench);
    return exit_status;
}

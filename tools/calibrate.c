#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "calibrate.h"

#include "cases.h"
#include "command.h"
#include "json.h"
#include "ways.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A choice is wrong where another kernel is faster than so much of the chosen one's time; less is noise. */
static const double clearly = 0.95;

struct line {
    const struct bench_case *bench_case;
    struct ways ways;
    int chosen; /* the way that the library takes; -1: it did not run */
};

struct calibration {
    const struct calibrate_options *options;
    vkattn_context *context;
    struct line lines[BENCH_CASES];
    unsigned count, left_out; /* for want of time */
    double scale;             /* seconds of a unit of cost: the geometric mean of the chosen kernels */
};

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

static vkattn_status measure_case(struct calibration *calibration, const struct bench_case *bench_case)
{
    struct line *line = &calibration->lines[calibration->count];
    vkattn_options options = {.access = calibration->options->access};
    vkattn_report report;
    line->bench_case = bench_case;
    line->chosen = -1;
    ways_init(&line->ways, calibration->context, &bench_case->problem, calibration->options->rounds);
    if (vkattn_explain(calibration->context->vkattn, &bench_case->problem, &options, &report) != VKATTN_OK) {
        command_complain("%s is left out: %s", bench_case->name, vkattn_last_error());
        return VKATTN_OK;
    }
    /* The chosen one first: its time says which of the others can be waited for. */
    options.kernel = report.candidates[report.chosen].kernel;
    line->chosen = ways_add(&line->ways, &options) ? 0 : -1;
    for (uint32_t i = 0; i < report.candidate_count; i++) {
        options.kernel = report.candidates[i].kernel;
        if ((int32_t)i != report.chosen)
            ways_add(&line->ways, &options);
    }
    calibration->count++;
    return ways_measure(&line->ways);
}

static const struct way *chosen_way(const struct line *line)
{
    const struct way *way = line->chosen < 0 ? NULL : &line->ways.way[line->chosen];
    return way && way->seconds > 0 ? way : NULL;
}

static double mean_scale(const struct calibration *calibration)
{
    double sum = 0;
    unsigned count = 0;
    for (unsigned i = 0; i < calibration->count; i++) {
        const struct way *way = chosen_way(&calibration->lines[i]);
        if (way)
            sum += log(way->seconds / way->cost), count++;
    }
    return count ? exp(sum / count) : 0;
}

/* Another kernel that is clearly faster; NULL: the choice is right. */
static const struct way *faster_way(const struct line *line)
{
    const struct way *best = ways_best(&line->ways), *chosen = chosen_way(line);
    return best && (!chosen || best->seconds < clearly * chosen->seconds) ? best : NULL;
}

/* ---- Printing -------------------------------------------------------------------------------------------------- */

static unsigned wrong_choices(const struct calibration *calibration)
{
    unsigned count = 0;
    for (unsigned i = 0; i < calibration->count; i++)
        count += faster_way(&calibration->lines[i]) != NULL;
    return count;
}

static void print_way(const struct calibration *calibration, const struct line *line, unsigned index)
{
    const struct way *way = &line->ways.way[index];
    const double predicted = calibration->scale * way->cost;
    const char *remark = (int)index == line->chosen ? "chosen" : "";
    if (way->seconds == 0) {
        printf("%-24s %-12s %5" PRIu32 " %10.4g %12.3f %12s %10s  %s\n", line->bench_case->name, way->options.kernel,
               way->tile, way->cost, predicted * 1e3, "-", "-", way->reason);
        return;
    }
    printf("%-24s %-12s %5" PRIu32 " %10.4g %12.3f %12.3f %10.2f  %s%s\n", line->bench_case->name, way->options.kernel,
           way->tile, way->cost, predicted * 1e3, way->seconds * 1e3, way->seconds / predicted, remark,
           way == faster_way(line) ? "FASTER than the chosen one" : "");
}

static void print_text(const struct calibration *calibration, bool by_cpu)
{
    printf("%s, %s %s; medians of %u rounds, %s\n", calibration->context->listed.name,
           calibration->context->listed.driver, calibration->context->listed.driver_info, calibration->options->rounds,
           by_cpu ? "processor time, since the device is this processor" : "device time");
    printf("predicted is cost times %.4g ns, the mean of the chosen kernels\n", calibration->scale * 1e9);
    printf("%-24s %-12s %5s %10s %12s %12s %10s\n", "case", "kernel", "tile", "cost", "predicted ms", "measured ms",
           "ratio");
    for (unsigned i = 0; i < calibration->count; i++)
        for (unsigned way = 0; way < calibration->lines[i].ways.count; way++)
            print_way(calibration, &calibration->lines[i], way);
    printf("%u of %u choices are wrong\n", wrong_choices(calibration), calibration->count);
    if (calibration->left_out)
        printf("time ran out: %u cases were left out\n", calibration->left_out);
}

static void json_way(struct json *json, const struct calibration *calibration, const struct line *line, unsigned index)
{
    const struct way *way = &line->ways.way[index];
    json_open_object(json, NULL);
    json_string(json, "case", line->bench_case->name);
    json_string(json, "kernel", way->options.kernel);
    json_unsigned(json, "tile", way->tile);
    json_bool(json, "chosen", (int)index == line->chosen);
    json_bool(json, "faster_than_chosen", way == faster_way(line));
    json_number(json, "cost", way->cost);
    json_number(json, "predicted_seconds", calibration->scale * way->cost);
    if (way->seconds > 0)
        json_number(json, "measured_seconds", way->seconds);
    else
        json_string(json, "missing", way->reason);
    json_close(json);
}

static void print_json(const struct calibration *calibration, bool by_cpu)
{
    struct json json = {.file = stdout};
    json_open_object(&json, NULL);
    json_string(&json, "device", calibration->context->listed.name);
    json_string(&json, "driver", calibration->context->listed.driver);
    json_string(&json, "driver_info", calibration->context->listed.driver_info);
    json_unsigned(&json, "rounds", calibration->options->rounds);
    json_string(&json, "seconds_of", by_cpu ? "processor time" : "device time");
    json_number(&json, "seconds_per_cost", calibration->scale);
    json_unsigned(&json, "cases", calibration->count);
    json_unsigned(&json, "cases_left_out", calibration->left_out);
    json_unsigned(&json, "wrong_choices", wrong_choices(calibration));
    json_open_array(&json, "ways");
    for (unsigned i = 0; i < calibration->count; i++)
        for (unsigned way = 0; way < calibration->lines[i].ways.count; way++)
            json_way(&json, calibration, &calibration->lines[i], way);
    json_close(&json);
    json_close(&json);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int measure_and_print(struct calibration *calibration)
{
    const double start = now(), limit = calibration->options->seconds;
    for (unsigned i = 0; i < BENCH_CASES; i++) {
        if (!cases_wants(calibration->options->cases, &bench_cases[i]))
            continue;
        if (limit > 0 && now() - start > limit) {
            calibration->left_out++;
            continue;
        }
        const vkattn_status status = measure_case(calibration, &bench_cases[i]);
        if (status != VKATTN_OK)
            return command_fail(status);
    }
    if (calibration->count == 0) {
        command_complain("no case is left to measure");
        return COMMAND_REFUSED;
    }
    calibration->scale = mean_scale(calibration);
    (calibration->options->json ? print_json : print_text)(calibration, calibration->lines[0].ways.by_cpu);
    return COMMAND_OK;
}

int calibrate_run(vkattn_context *context, const struct calibrate_options *options)
{
    struct calibration *calibration = calloc(1, sizeof *calibration);
    if (!calibration) {
        command_complain("out of memory");
        return COMMAND_REFUSED;
    }
    calibration->options = options;
    calibration->context = context;
    const int exit_status = measure_and_print(calibration);
    free(calibration);
    return exit_status;
}

#define _POSIX_C_SOURCE 200809L
#include "hostcost.h"

#include "cases.h"
#include "timing.h"

#include <stdlib.h>
#include <time.h>

enum { REPEATS = 10000, PER_BUFFER = 100 };

struct recorder {
    vkattn_plan *plan;
    vkattn_buffers buffers;
    double seconds[REPEATS];
    unsigned count;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Records and then declines the submission: nothing has to run. */
static vkattn_status record_many(void *user, VkCommandBuffer cmd)
{
    struct recorder *recorder = user;
    for (unsigned i = 0; i < PER_BUFFER && recorder->count < REPEATS; i++) {
        const double start = now();
        const vkattn_status status = vkattn_record(recorder->plan, cmd, &recorder->buffers, NULL);
        recorder->seconds[recorder->count++] = now() - start;
        if (status != VKATTN_OK)
            return status;
    }
    return vkattn_error_set(VKATTN_UNSUPPORTED, "recorded only to be timed");
}

static vkattn_status time_records(vkattn_context *context, struct recorder *recorder)
{
    while (recorder->count < REPEATS) {
        const vkattn_status status = vkattn_run(context, record_many, recorder, NULL);
        if (status != VKATTN_UNSUPPORTED)
            return status;
    }
    return VKATTN_OK;
}

static vkattn_status time_plans(vkattn_context *context, const vkattn_problem *problem, const vkattn_options *options,
                                double *seconds)
{
    for (unsigned i = 0; i < REPEATS; i++) {
        vkattn_plan *plan;
        const double start = now();
        const vkattn_status status = vkattn_plan_create(context->vkattn, problem, options, &plan);
        seconds[i] = now() - start;
        if (status != VKATTN_OK)
            return status;
        vkattn_plan_destroy(plan);
    }
    return VKATTN_OK;
}

/* One buffer serves all tensors: nothing is read or written. */
static vkattn_buffer tensor_of(const vkattn_mapped *mapped)
{
    return (vkattn_buffer){.buffer = mapped->buffer, .size = mapped->size};
}

static vkattn_status measure(vkattn_context *context, const vkattn_options *options, vkattn_mapped *tensors,
                             vkattn_mapped *workspace, struct recorder *recorder, struct hostcost *cost)
{
    const vkattn_problem *problem = &bench_cases[1].problem;
    vkattn_status status = vkattn_plan_create(context->vkattn, problem, options, &recorder->plan);
    if (status == VKATTN_OK)
        status =
            vkattn_mapped_create(context, (VkDeviceSize)problem->heads * problem->len_q * problem->dim_qk * 4, tensors);
    if (status == VKATTN_OK)
        status = vkattn_mapped_create(context, vkattn_plan_workspace(recorder->plan).size, workspace);
    if (status != VKATTN_OK)
        return status;
    const vkattn_buffer tensor = tensor_of(tensors);
    recorder->buffers =
        (vkattn_buffers){.q = tensor, .k = tensor, .v = tensor, .o = tensor, .workspace = tensor_of(workspace)};
    status = time_records(context, recorder);
    cost->record = timing_median(recorder->seconds, REPEATS);
    if (status == VKATTN_OK)
        status = time_plans(context, problem, options, recorder->seconds);
    cost->plan = timing_median(recorder->seconds, REPEATS);
    return status;
}

vkattn_status hostcost_measure(vkattn_context *context, const vkattn_options *options, struct hostcost *cost)
{
    vkattn_mapped tensors = {0}, workspace = {0};
    struct recorder *recorder = calloc(1, sizeof *recorder);
    if (!recorder)
        return vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for timing");
    const vkattn_status status = measure(context, options, &tensors, &workspace, recorder, cost);
    vkattn_mapped_destroy(context, &tensors);
    vkattn_mapped_destroy(context, &workspace);
    vkattn_plan_destroy(recorder->plan);
    free(recorder);
    return status;
}

#define _POSIX_C_SOURCE 200809L
#include "timing.h"

#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Runs before the clock counts: caches, page faults, clock rates. */
#define WARM_RUNS 2u
/* Enough runs for a median, at most so many, and seconds after which few are enough. */
#define LEAST_RUNS       5u
#define MOST_RUNS        101u
#define ENOUGH_SECONDS   1.0
#define TOO_MANY_SECONDS 10.0

struct session {
    vkattn_context *context;
    vkattn_plan *plan;
    vkattn_mapped mapped[BLOB_COUNT + 1]; /* the last one is the workspace */
    vkattn_buffers buffers;
};

vkattn_buffer *timing_buffer(vkattn_buffers *buffers, unsigned id)
{
    vkattn_buffer *const all[BLOB_COUNT + 1] = {
        [BLOB_Q] = &buffers->q,
        [BLOB_K] = &buffers->k,
        [BLOB_V] = &buffers->v,
        [BLOB_O] = &buffers->o,
        [BLOB_LSE] = &buffers->lse,
        [BLOB_WEIGHTS] = &buffers->weights,
        [BLOB_MASK] = &buffers->mask,
        [BLOB_BIAS] = &buffers->bias,
        [BLOB_ALIBI] = &buffers->alibi,
        [BLOB_SINKS] = &buffers->sinks,
        [BLOB_KV_LENGTHS] = &buffers->kv_lengths,
        [BLOB_Q_LENGTHS] = &buffers->q_lengths,
        [BLOB_PREFIX] = &buffers->prefix,
        [BLOB_Q_SEGMENTS] = &buffers->q_segments,
        [BLOB_KV_SEGMENTS] = &buffers->kv_segments,
        [BLOB_COUNT] = &buffers->workspace,
    };
    return all[id];
}

/* A buffer of whole words, and not empty, since a size of 0 means that there is no such tensor. */
static vkattn_status make_buffer(struct session *session, unsigned id, uint64_t size)
{
    const VkDeviceSize rounded = size ? (size + 3) & ~(uint64_t)3 : 4;
    vkattn_mapped *mapped = &session->mapped[id];
    const vkattn_status status = vkattn_mapped_create_near(session->context, rounded, mapped);
    if (status == VKATTN_OK)
        *timing_buffer(&session->buffers, id) = (vkattn_buffer){.buffer = mapped->buffer, .size = rounded};
    return status;
}

static vkattn_status make_buffers(struct session *session, const struct blob blobs[BLOB_COUNT])
{
    for (unsigned id = 0; id < BLOB_COUNT; id++) {
        const struct blob *blob = &blobs[id];
        if (!blob->data)
            continue;
        const vkattn_status status = make_buffer(session, id, blob->size);
        if (status != VKATTN_OK)
            return status;
        memcpy(session->mapped[id].data, blob->data, blob->size);
    }
    return make_buffer(session, BLOB_COUNT, vkattn_plan_workspace(session->plan).size);
}

static vkattn_status record(void *user, VkCommandBuffer cmd)
{
    const struct session *session = user;
    return vkattn_record(session->plan, cmd, &session->buffers, NULL);
}

double timing_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

vkattn_status timing_run(vkattn_context *context, vkattn_record_fn function, void *user, struct sample *sample)
{
    const double start = timing_cpu_seconds();
    const vkattn_status status = vkattn_run(context, function, user, &sample->device);
    sample->cpu = timing_cpu_seconds() - start;
    return status;
}

vkattn_status session_open(vkattn_context *context, const vkattn_problem *problem, const vkattn_options *options,
                           const struct blob blobs[BLOB_COUNT], struct session **session)
{
    *session = NULL;
    struct session *made = calloc(1, sizeof *made);
    if (!made)
        return vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for a session");
    made->context = context;
    vkattn_status status = vkattn_plan_create(context->vkattn, problem, options, &made->plan);
    if (status == VKATTN_OK)
        status = make_buffers(made, blobs);
    if (status == VKATTN_OK)
        *session = made;
    else
        session_close(made);
    return status;
}

vkattn_status session_run(struct session *session, struct sample *sample)
{
    return timing_run(session->context, record, session, sample);
}

void session_close(struct session *session)
{
    if (!session)
        return;
    for (unsigned id = 0; id <= BLOB_COUNT; id++) {
        if (session->mapped[id].buffer)
            vkattn_mapped_destroy(session->context, &session->mapped[id]);
    }
    vkattn_plan_destroy(session->plan);
    free(session);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double timing_median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static vkattn_status repeat(struct session *session, struct timing *timing)
{
    double seconds[MOST_RUNS], total = 0;
    unsigned runs = 0;
    for (unsigned i = 0; i < WARM_RUNS + MOST_RUNS; i++) {
        struct sample sample;
        command_progress("timing: run %u ...", i + 1);
        const vkattn_status status = session_run(session, &sample);
        if (status != VKATTN_OK)
            return status;
        if (i < WARM_RUNS && sample.device < TOO_MANY_SECONDS)
            continue;
        seconds[runs++] = sample.device;
        total += sample.device;
        if (runs == MOST_RUNS || total > (runs >= LEAST_RUNS ? ENOUGH_SECONDS : TOO_MANY_SECONDS))
            break;
    }
    timing->median = timing_median(seconds, runs);
    timing->least = seconds[0];
    timing->runs = runs;
    return VKATTN_OK;
}

vkattn_status timing_measure(vkattn_context *context, const struct inputs *inputs, const vkattn_options *options,
                             struct timing *timing)
{
    struct session *session;
    vkattn_status status = session_open(context, &inputs->problem, options, inputs->blobs, &session);
    if (status == VKATTN_OK)
        status = repeat(session, timing);
    command_progress(NULL);
    session_close(session);
    return status;
}

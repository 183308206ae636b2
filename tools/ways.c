#include "ways.h"

#include "cases.h"
#include "command.h"

#include <stdio.h>
#include <string.h>

/* A way whose second run takes so many times the best one's is out of the race; one whose first run, compilation
 * included, takes so many has no second. */
static const double hopeless = 4, hopeless_at_once = 20;

/* Nor does one run that should take longer than this, as the first way's time and both costs have it. */
static const double too_long = 2;

void ways_init(struct ways *ways, vkattn_context *context, const vkattn_problem *problem, unsigned rounds)
{
    memset(ways, 0, sizeof *ways);
    ways->context = context;
    ways->problem = *problem;
    ways->rounds = rounds < MOST_WAY_ROUNDS ? rounds : MOST_WAY_ROUNDS;
    ways->by_cpu = context->listed.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
}

bool ways_add(struct ways *ways, const vkattn_options *options)
{
    vkattn_report report;
    if (ways->count == MOST_WAYS ||
        vkattn_explain(ways->context->vkattn, &ways->problem, options, &report) != VKATTN_OK)
        return false;
    const vkattn_candidate *chosen = &report.candidates[report.chosen];
    ways->way[ways->count++] = (struct way){.options = *options, .cost = chosen->cost, .tile = chosen->tile};
    return true;
}

static void leave(struct way *way)
{
    snprintf(way->reason, sizeof way->reason, "%s", vkattn_last_error());
    session_close(way->session);
    way->session = NULL;
    way->count = 0;
}

/* DEVICE_LOST ends everything; any other failure ends the way. */
static vkattn_status run_way(struct ways *ways, struct way *way, double *seconds)
{
    struct sample sample;
    command_progress("%s, tile %u ...", way->options.kernel, way->tile);
    const vkattn_status status = session_run(way->session, &sample);
    *seconds = ways->by_cpu ? sample.cpu : sample.device;
    if (status != VKATTN_OK)
        leave(way);
    return status == VKATTN_DEVICE_LOST ? status : VKATTN_OK;
}

static bool is_hopeless(const struct ways *ways, double seconds, double factor)
{
    const struct way *best = ways_best(ways);
    return best && seconds > factor * best->seconds;
}

static bool should_take_too_long(const struct ways *ways, struct way *way)
{
    const struct way *best = ways_best(ways);
    const double seconds = best ? way->cost * best->seconds / best->cost : 0;
    if (seconds > too_long)
        snprintf(way->reason, sizeof way->reason, "left out: a run should take %.1f s", seconds);
    return seconds > too_long;
}

/* Two runs of each: the first compiles what planning left, and warms caches. */
static vkattn_status open_all(struct ways *ways, const struct blob blobs[BLOB_COUNT])
{
    for (unsigned i = 0; i < ways->count; i++) {
        struct way *way = &ways->way[i];
        double seconds = 0;
        if (should_take_too_long(ways, way))
            continue;
        command_progress("preparing %s, tile %u ...", way->options.kernel, way->tile);
        const vkattn_status status = session_open(ways->context, &ways->problem, &way->options, blobs, &way->session);
        if (status != VKATTN_OK)
            leave(way);
        for (unsigned run = 0; way->session && run < 2 && !is_hopeless(ways, seconds, hopeless_at_once); run++)
            if (run_way(ways, way, &seconds) != VKATTN_OK)
                return VKATTN_DEVICE_LOST;
        if (status == VKATTN_DEVICE_LOST)
            return status;
        if (way->session) {
            way->samples[0] = way->seconds = seconds;
            way->count = 1;
        }
    }
    return VKATTN_OK;
}

static vkattn_status run_all(struct ways *ways)
{
    for (unsigned round = 0; round < ways->rounds; round++)
        for (unsigned i = 0; i < ways->count; i++) {
            struct way *way = &ways->way[i];
            if (!way->session || is_hopeless(ways, way->seconds, hopeless))
                continue;
            /* The run before counts only for a way that has no other. */
            if (run_way(ways, way, &way->samples[round]) != VKATTN_OK)
                return VKATTN_DEVICE_LOST;
            way->count = way->session ? round + 1 : 0;
        }
    return VKATTN_OK;
}

vkattn_status ways_measure(struct ways *ways)
{
    struct blob blobs[BLOB_COUNT] = {0};
    vkattn_status status = cases_make_blobs(&ways->problem, blobs)
                               ? VKATTN_OK
                               : vkattn_error_set(VKATTN_NO_MEMORY, "out of host memory for the tensors");
    if (status == VKATTN_OK)
        status = open_all(ways, blobs);
    cases_free_blobs(blobs);
    if (status == VKATTN_OK)
        status = run_all(ways);
    for (unsigned i = 0; i < ways->count; i++) {
        struct way *way = &ways->way[i];
        session_close(way->session);
        way->session = NULL;
        way->seconds = way->count ? timing_median(way->samples, way->count) : 0;
    }
    command_progress(NULL);
    return status;
}

const struct way *ways_best(const struct ways *ways)
{
    const struct way *best = NULL;
    for (unsigned i = 0; i < ways->count; i++)
        if (ways->way[i].seconds > 0 && (!best || ways->way[i].seconds < best->seconds))
            best = &ways->way[i];
    return best;
}

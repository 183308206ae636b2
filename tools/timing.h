/* The time of a problem on a device, measured over repeated runs. */
#ifndef VKATTN_TOOLS_TIMING_H
#define VKATTN_TOOLS_TIMING_H

#include "inputs.h"

#include <vkattn/helper.h>

/* One run: the device's clock, and the processor time of this process, which is what repeats on a busy machine when the
 * device is a CPU driver. */
struct sample {
    double device, cpu; /* seconds */
};

/* A planned problem with its tensors on the device, ready to run again and again. Outputs stay there. */
struct session;

/* Plan and copy the blobs. On failure *session is NULL; fails as vkattn_plan_create and vkattn_mapped_create do. */
vkattn_status session_open(vkattn_context *context, const vkattn_problem *problem, const vkattn_options *options,
                           const struct blob blobs[BLOB_COUNT], struct session **session);
vkattn_status session_run(struct session *session, struct sample *sample);
void session_close(struct session *session);

/* Run anything that records, and take its time. */
vkattn_status timing_run(vkattn_context *context, vkattn_record_fn record, void *user, struct sample *sample);

/* Processor time of this process so far, seconds. */
double timing_cpu_seconds(void);

/* The median; sorts `values`. */
double timing_median(double *values, unsigned count);

struct timing {
    double median, least; /* device seconds */
    unsigned runs;
};

/* Run a problem until the median is steady. Fails as session_open and session_run do. */
vkattn_status timing_measure(vkattn_context *context, const struct inputs *inputs, const vkattn_options *options,
                             struct timing *timing);

/* The field of an enum blob_id; of BLOB_COUNT, the workspace. */
vkattn_buffer *timing_buffer(vkattn_buffers *buffers, unsigned id);

#endif

/* One check problem on one device: its buffers, and a trial of each way to compute it. */
#ifndef VKATTN_TOOLS_TRIAL_H
#define VKATTN_TOOLS_TRIAL_H

#include "trial_data.h"

#include <vkattn/helper.h>

enum trial_outcome { TRIAL_PASSED, TRIAL_FAILED, TRIAL_SKIPPED };

struct trial_result {
    enum trial_outcome outcome;
    bool lost;          /* the device is gone: no use to go on */
    double ratio;       /* the worst error in units of its bound */
    const char *output; /* where that was: "O", "LSE", "weights" */
    uint64_t index[4];  /* batch, head, row, element */
    char sentence[400]; /* why it failed or was skipped; else "" */
};

struct trial {
    vkattn_context *context;
    struct trial_data *data;
    vkattn_mapped mapped[BLOB_COUNT]; /* of stores, with guard margins */
};

/* Make the buffers of a problem. Close the trial in either case. */
vkattn_status trial_open(vkattn_context *context, struct trial_data *data, struct trial *trial);
void trial_close(struct trial *trial);

/*
 * Plan, and run several times with everything poisoned anew: tensors that are aligned to their element only, the same
 * again (equal bits; perhaps cut into small dispatches), tensors that are aligned well, and with 16-bit K and V those
 * again. Each run must meet the reference's bounds, write every element of its outputs, and change no other byte.
 */
void trial_run(struct trial *trial, const vkattn_options *options, struct trial_result *result);

#endif

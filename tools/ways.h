/* Several ways to compute one problem (kernels, tiles), measured side by side. */
#ifndef VKATTN_TOOLS_WAYS_H
#define VKATTN_TOOLS_WAYS_H

#include "timing.h"

enum { MOST_WAYS = 64, MOST_WAY_ROUNDS = 101 };

struct way {
    vkattn_options options; /* the caller's; kernel is a static string */
    double cost;            /* what the kernel says */
    uint32_t tile;          /* the row of its table that it takes */
    double seconds;         /* measured: the median; 0: it did not run */
    char reason[160];       /* why it did not */
    struct session *session;
    double samples[MOST_WAY_ROUNDS];
    unsigned count;
};

struct ways {
    vkattn_context *context;
    vkattn_problem problem;
    unsigned rounds;
    bool by_cpu; /* by processor time, since the device is this processor */
    struct way way[MOST_WAYS];
    unsigned count;
};

/* None yet, for a problem on a device. */
void ways_init(struct ways *ways, vkattn_context *context, const vkattn_problem *problem, unsigned rounds);

/* Add a way unless the library refuses it; false: it does, for a reason that vkattn_last_error() tells. */
bool ways_add(struct ways *ways, const vkattn_options *options);

/* Run all of them, in turns. A way that takes far longer than the best is left after one run; one that should take
 * seconds, by the costs and a way before it, is not begun. What cannot be opened or
 * run stays without seconds; fails only where nothing can go on: VKATTN_NO_MEMORY (the tensors), VKATTN_DEVICE_LOST. */
vkattn_status ways_measure(struct ways *ways);

/* The fastest that ran; NULL: none. */
const struct way *ways_best(const struct ways *ways);

#endif

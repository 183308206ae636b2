/* The problems that `vkattn bench` times and `vkattn kernels --stats` compiles, and data for such problems. */
#ifndef VKATTN_TOOLS_CASES_H
#define VKATTN_TOOLS_CASES_H

#include "inputs.h"

#include <stdbool.h>
#include <vkattn/vkattn.h>

struct bench_case {
    const char *name;
    vkattn_problem problem; /* of optional inputs a mask and a bias at most; dim_v is dim_qk */
};

enum { BENCH_CASES = 20 };
extern const struct bench_case bench_cases[BENCH_CASES];

/* Whether --case asks for the case: `parts` is NULL, or the name holds one of its parts (TEXT,TEXT,...). */
bool cases_wants(const char *parts, const struct bench_case *bench_case);

/* False, and says so, when `parts` asks for none at all. */
bool cases_check_wants(const char *parts);

/* Q, K, V and bias of any values in -1 .. 1, a mask of which 7 in 8 are True, the same on every machine, and room for
 * O. False: out of memory. Free them in either case. */
bool cases_make_blobs(const vkattn_problem *problem, struct blob blobs[BLOB_COUNT]);
void cases_free_blobs(struct blob blobs[BLOB_COUNT]);

#endif

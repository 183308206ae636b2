/* The problems that `vkattn bench` times and `vkattn kernels --stats` compiles, and data for such problems. */
#ifndef VKATTN_TOOLS_CASES_H
#define VKATTN_TOOLS_CASES_H

#include "inputs.h"

#include <vkattn/vkattn.h>

struct bench_case {
    const char *name;
    vkattn_problem problem; /* no optional inputs; dim_v is dim_qk */
};

enum { BENCH_CASES = 17 };
extern const struct bench_case bench_cases[BENCH_CASES];

/* Q, K, V of any values in -1 .. 1, the same on every machine, and room for O. False: out of memory. Free them in
 * either case. */
bool cases_make_blobs(const vkattn_problem *problem, struct blob blobs[BLOB_COUNT]);
void cases_free_blobs(struct blob blobs[BLOB_COUNT]);

#endif

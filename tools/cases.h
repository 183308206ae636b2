/* The problems that `vkattn bench` times and `vkattn kernels --stats` compiles. */
#ifndef VKATTN_TOOLS_CASES_H
#define VKATTN_TOOLS_CASES_H

#include <vkattn/vkattn.h>

struct bench_case {
    const char *name;
    vkattn_problem problem; /* no optional inputs; dim_v is dim_qk */
};

enum { BENCH_CASES = 17 };
extern const struct bench_case bench_cases[BENCH_CASES];

#endif

/* fwd_weights: W = exp(s - LSE) behind a forward kernel that wrote LSE. One pipeline serves every problem. */
#include "kernel.h"

static const struct tile tiles[] = {
    {.classes = ~0u, .max_dim = VKATTN_MAX_DIM, .workgroup = 64, .rows = 1, .keys = 64, .split = 1},
};

extern const struct spirv vkattn_spirv_fwd_weights[2];
extern const struct kernel vkattn_fwd_weights;

static double rounds(const struct problem *problem, const struct tile *tile)
{
    return ((double)problem->len_kv / tile->workgroup + 1) * (problem->dim_qk + 1) + VKATTN_MAX_DIM;
}

const struct kernel vkattn_fwd_weights = {
    .name = "fwd_weights",
    .role = ROLE_WEIGHTS,
    .spirv = vkattn_spirv_fwd_weights,
    .tiles = tiles,
    .tile_count = 1,
    .rounds = rounds,
    .constants = vkattn_workgroup_constant,
    .group_rows = vkattn_tile_rows,
};

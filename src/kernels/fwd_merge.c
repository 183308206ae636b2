/* fwd_merge: two results over disjoint keys into one. One pipeline serves every merge. */
#include "kernel.h"

static const struct tile tiles[] = {
    /* Invocations are chunks of four columns. */
    {.classes = 1u << CLASS_CPU | 1u << CLASS_CPU_OLD, .max_dim = VKATTN_MAX_DIM, .workgroup = 8, .rows = 1},
    {.classes = ~0u, .max_dim = VKATTN_MAX_DIM, .workgroup = 32, .rows = 1},
};

extern const struct spirv vkattn_spirv_fwd_merge[2];
extern const struct kernel vkattn_fwd_merge;

const struct kernel vkattn_fwd_merge = {
    .name = "fwd_merge",
    .role = ROLE_MERGE,
    .spirv = vkattn_spirv_fwd_merge,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .constants = vkattn_workgroup_constant,
    .group_rows = vkattn_tile_rows,
};

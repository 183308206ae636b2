/* fwd_combine: joins the parts of a forward kernel that cuts the keys. One pipeline serves every problem. */
#include "kernel.h"

static const struct tile tiles[] = {
    /* Invocations are chunks of four columns. */
    {.classes = 1u << CLASS_CPU | 1u << CLASS_CPU_OLD, .max_dim = VKATTN_MAX_DIM, .workgroup = 8, .rows = 1},
    {.classes = ~0u, .max_dim = VKATTN_MAX_DIM, .workgroup = 32, .rows = 1},
};

extern const struct spirv vkattn_spirv_fwd_combine[2];
extern const struct kernel vkattn_fwd_combine;

const struct kernel vkattn_fwd_combine = {
    .name = "fwd_combine",
    .role = ROLE_COMBINE,
    .spirv = vkattn_spirv_fwd_combine,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .constants = vkattn_workgroup_constant,
    .group_rows = vkattn_tile_rows,
};

/* fwd_combine: joins the parts of a forward kernel that cuts the keys. One pipeline serves every problem. */
#include "kernel.h"

static const struct tile tiles[] = {
    /* Invocations are chunks of four columns. */
    {.classes = 1u << CLASS_CPU | 1u << CLASS_CPU_OLD, .max_dim = VKATTN_MAX_DIM, .workgroup = 8, .rows = 1},
    {.classes = ~0u, .max_dim = VKATTN_MAX_DIM, .workgroup = 32, .rows = 1},
};

extern const struct spirv vkattn_spirv_fwd_combine[2];
extern const struct kernel vkattn_fwd_combine;

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    (void)problem, (void)caps;
    values[VKA_ID_WORKGROUP] = tile->workgroup;
}

static uint32_t group_rows(const struct problem *problem, const struct tile *tile)
{
    (void)problem;
    return tile->rows;
}

const struct kernel vkattn_fwd_combine = {
    .name = "fwd_combine",
    .role = ROLE_COMBINE,
    .spirv = vkattn_spirv_fwd_combine,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .constants = constants,
    .group_rows = group_rows,
};

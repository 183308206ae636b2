/* fwd_rows: the plain path, for any device and any shape. One pipeline serves every problem. */
#include "kernel.h"

/* Barriers are what costs a CPU driver most: many keys between two of them, few invocations that each have to be
 * resumed. On a GPU 64 invocations are one or two subgroups. Shared memory is 2 (576 + keys) words, which the minimum
 * device has. */
static const struct tile tiles[] = {
    {.classes = 1u << CLASS_CPU | 1u << CLASS_CPU_OLD,
     .max_dim = VKATTN_MAX_DIM,
     .workgroup = 8,
     .rows = 1,
     .keys = 128,
     .split = 1},
    {.classes = ~0u, .max_dim = VKATTN_MAX_DIM, .workgroup = 64, .rows = 1, .keys = 128, .split = 1},
};

extern const struct spirv vkattn_spirv_fwd_rows[2];
extern const struct kernel vkattn_fwd_rows;

static double cost(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    (void)caps, (void)tile;
    /* Every pair loads K and V for one row alone: two loads per multiply-add. */
    const double pairs = vkattn_pairs(problem) * problem->batch * problem->heads;
    return 3 * pairs * (problem->dim_qk + problem->dim_v) + 1000;
}

/* The loops over keys and over the elements of their rows; columns of V are the invocations'. */
static double rounds(const struct problem *problem, const struct tile *tile)
{
    const double keys = problem->len_kv, w = tile->workgroup;
    return keys / w * problem->dim_qk + 3 * keys + keys * ((problem->dim_v + w - 1) / w) + VKATTN_MAX_DIM;
}

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    (void)problem, (void)caps;
    values[VKA_ID_WORKGROUP] = tile->workgroup;
    values[VKA_ID_KEYS] = tile->keys;
}

const struct kernel vkattn_fwd_rows = {
    .name = "fwd_rows",
    .role = ROLE_FORWARD,
    .spirv = vkattn_spirv_fwd_rows,
    .p_type = VKATTN_F32,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .cost = cost,
    .rounds = rounds,
    .constants = constants,
    .group_rows = vkattn_tile_rows,
};

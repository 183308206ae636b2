/* kv_unpack: 16-bit K and V to f32 copies in the workspace, before a forward kernel that reads those. One pipeline
 * serves every problem. */
#include "kernel.h"

static const struct tile tiles[] = {
    {.classes = ~0u, .max_dim = VKATTN_MAX_DIM, .workgroup = 16, .rows = 1, .keys = 16, .split = 1},
};

extern const struct spirv vkattn_spirv_kv_unpack[2];
extern const struct kernel vkattn_kv_unpack;

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    (void)problem, (void)caps;
    values[VKA_ID_WORKGROUP] = tile->workgroup;
    values[VKA_ID_KEYS] = tile->keys;
}

static uint32_t group_rows(const struct problem *problem, const struct tile *tile)
{
    (void)problem;
    return tile->keys;
}

const struct kernel vkattn_kv_unpack = {
    .name = "kv_unpack",
    .role = ROLE_UNPACK,
    .work = WORK_KEYS,
    .spirv = vkattn_spirv_kv_unpack,
    .tiles = tiles,
    .tile_count = 1,
    .constants = constants,
    .group_rows = group_rows,
};

/* kv_unpack: 16-bit K and V to f32 copies in the workspace, before a forward kernel that reads those. One pipeline
 * serves every problem. */
#include "kernel.h"

#define CPU (1u << CLASS_CPU)

static const struct tile tiles[] = {
    /* One subgroup of llvmpipe's */
    {.classes = CPU, .max_dim = VKATTN_MAX_DIM, .workgroup = 8, .rows = 1, .keys = 16, .split = 1},
    /* Reasoning: a subgroup or two, whose loads and stores are contiguous */
    {.classes = ~CPU, .max_dim = VKATTN_MAX_DIM, .workgroup = 64, .rows = 1, .keys = 16, .split = 1},
};

extern const struct spirv vkattn_spirv_kv_unpack[2];
extern const struct kernel vkattn_kv_unpack;

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    (void)problem;
    values[VKA_ID_WORKGROUP] = tile->workgroup;
    values[VKA_ID_KEYS] = tile->keys;
    values[VKA_ID_UNIFORM] = caps->device_class == CLASS_CPU ? tile->workgroup : 0;
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
    .tile_count = sizeof tiles / sizeof *tiles,
    .constants = constants,
    .group_rows = group_rows,
};

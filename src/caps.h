/* What a device can do, as plain numbers: planning needs no driver and tests pretend any device. */
#ifndef VKATTN_CAPS_H
#define VKATTN_CAPS_H

#include <stdbool.h>
#include <stdint.h>

/* Tile tables are kept by class: devices of one class like the same numbers. */
enum device_class {
    CLASS_UNKNOWN,
    CLASS_CPU,     /* llvmpipe: lanes are SIMD lanes, uniform loads through addresses are nearly free */
    CLASS_CPU_OLD, /* llvmpipe before Mesa 25: no load is free, and code takes long to compile */
    CLASS_AMD,
    CLASS_NVIDIA,
    CLASS_INTEL,
    CLASS_MALI,
    CLASS_ADRENO,
    CLASS_APPLE,
    CLASS_COUNT
};

struct tuning;

struct caps {
    enum device_class device_class;
    uint32_t subgroup_size;     /* the default one; 0: must not be relied on */
    uint32_t subgroup_size_min; /* sizes that a pipeline can ask for; equal to subgroup_size where it cannot ask */
    uint32_t subgroup_size_max;
    bool subgroup_size_control; /* a pipeline may require a size and full subgroups */
    bool addresses;
    bool descriptors;         /* push descriptors with all tensors bound at once */
    bool float_controls;      /* SignedZeroInfNanPreserve for f32 */
    uint32_t max_invocations; /* of a work group, along x too */
    uint32_t shared_bytes;
    uint32_t max_groups_x, max_groups_y;
    uint64_t max_range;          /* bytes of one storage buffer binding */
    uint32_t offset_alignment;   /* of a storage buffer binding, bytes */
    uint32_t fill_groups;        /* work groups of one subgroup that keep the device busy */
    bool shuffles;               /* subgroup shuffles in compute shaders */
    uint32_t max_loop_rounds;    /* of all loops of an invocation; 0: no limit. A driver's fault, see src/vk/device.c */
    const struct tuning *tuning; /* what was measured on this very device; NULL: nothing was */
};

#endif

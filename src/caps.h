/* What a device can do, as plain numbers: planning needs no driver and tests pretend any device. */
#ifndef VKATTN_CAPS_H
#define VKATTN_CAPS_H

#include <stdbool.h>
#include <stdint.h>

/* Tile tables are kept by class: devices of one class like the same numbers. */
enum device_class {
    CLASS_UNKNOWN,
    CLASS_CPU,     /* llvmpipe: lanes are SIMD lanes, uniform loads through addresses are nearly free */
    CLASS_CPU_OLD, /* llvmpipe before Mesa 26: no load is free, and code takes long to compile */
    CLASS_AMD,
    CLASS_NVIDIA,
    CLASS_INTEL,
    CLASS_MALI,
    CLASS_ADRENO,
    CLASS_APPLE,
    CLASS_COUNT
};

/* A cooperative matrix product of f16 with f32 sums in a subgroup: M x K times K x N. */
struct matrix {
    uint32_t m, n, k;
};

enum { MAX_MATRICES = 16 };

struct tuning;

struct caps {
    enum device_class device_class;
    uint32_t subgroup_size;     /* the default one; 0: must not be relied on */
    uint32_t subgroup_size_min; /* sizes that a pipeline can ask for; equal to subgroup_size where it cannot ask */
    uint32_t subgroup_size_max;
    bool subgroup_size_control; /* a pipeline may require a size and full subgroups */
    bool addresses;
    const char *addresses_off; /* why they are not used, where they are enabled; else NULL. A driver's fault */
    bool descriptors;          /* push descriptors with all tensors bound at once */
    bool float_controls;       /* SignedZeroInfNanPreserve for f32 */
    uint32_t max_invocations;  /* of a work group, along x too */
    uint32_t shared_bytes;
    uint32_t max_groups_x, max_groups_y;
    uint64_t max_range;        /* bytes of one storage buffer binding */
    uint32_t offset_alignment; /* of a storage buffer binding, bytes */
    uint32_t fill_groups;      /* work groups of one subgroup that keep the device busy */
    bool shuffles;             /* subgroup shuffles in compute shaders */
    uint32_t matrix_count;     /* 0: matrix units are not to be used */
    struct matrix matrices[MAX_MATRICES];
    bool matrix_tested[MAX_MATRICES];     /* by vkattn_device_selftest */
    const char *matrix_off[MAX_MATRICES]; /* why a shape is not used; NULL: it is. Static text, as below */
    const char *matrices_off;             /* why none is, where there may be some; else NULL */
    bool subgroups_tested;
    const char *subgroups_off;   /* why sizes are not asked for, where they could be; else NULL */
    bool joint_barriers;         /* a subgroup waits at its barriers for the whole work group. A fault, likewise */
    uint32_t max_loop_rounds;    /* of all loops of an invocation; 0: no limit. A driver's fault, see src/vk/device.c */
    const struct tuning *tuning; /* what was measured on this very device; NULL: nothing was */
};

#endif

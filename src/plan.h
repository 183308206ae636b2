/* A plan as plain data: which kernels run with which constants. A pure function of the problem and of device numbers.
 */
#ifndef VKATTN_PLAN_H
#define VKATTN_PLAN_H

#include "kernel.h"

enum { MAX_STEPS = 4 };

/* The parameter block comes first in the workspace; tensors that the library needs for itself follow. */
enum { PARAMS_SIZE = 1024 };

struct step {
    const struct kernel *kernel;
    const struct tile *tile;
    uint32_t constants[VKA_IDS];
    uint32_t group_rows; /* of one work group: queries, or keys of a kernel over keys */
};

struct plan {
    struct problem problem;
    struct step steps[MAX_STEPS];
    uint32_t step_count;
    /* Instead of the forward step when 16-bit K or V starts in mid-word and that step needs words; kernel NULL: never.
     */
    struct step mid_word;
    bool addresses;                          /* how tensors are reached */
    uint64_t workspace_offset[TENSOR_COUNT]; /* bytes; of tensors that the library keeps for itself, else 0 */
    uint64_t workspace_size;                 /* bytes */
    uint64_t max_work;                       /* score elements of one dispatch; 0: no limit */
};

/* Choose kernels for a canonical problem. `report` may be NULL; it is complete whatever the status.
 * VKATTN_OK, VKATTN_INVALID (an option), VKATTN_UNSUPPORTED. */
vkattn_status vkattn_plan_choose(const struct problem *problem, const struct caps *caps, const vkattn_options *options,
                                 struct plan *plan, vkattn_report *report);

/* The parameter block of a plan for a call with `lengths`; tensor addresses are left 0. */
void vkattn_plan_params(const struct plan *plan, const vkattn_lengths *lengths, vka_params *params);

/* Whether a step cannot read K or V that start in mid-word. */
bool vkattn_step_needs_words(const struct step *step);

/* Row blocks of a step in one head, and the work groups of all heads. */
uint32_t vkattn_step_blocks(const struct step *step, const vkattn_lengths *lengths);
uint64_t vkattn_step_groups(const struct plan *plan, const struct step *step, const vkattn_lengths *lengths);

/* Of the workspace's offset in its buffer, and of the library's own tensors in it: a descriptor may begin there. Bytes.
 */
uint32_t vkattn_workspace_alignment(const struct caps *caps);

/* The step that computes O. */
const struct step *vkattn_forward_step(const struct plan *plan);

/* The numbers of a device; defined beside it, since only src/vk knows what else a device is. */
const struct caps *vkattn_device_caps(const vkattn_device *device);

#endif

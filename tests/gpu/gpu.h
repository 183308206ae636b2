/* What the GPU tests share: a device that must stay silent, problems with random tensors, buffers, the comparison with
 * the reference. A Criterion test that uses it is skipped, with the reason, where no device is. */
#ifndef VKATTN_TESTS_GPU_H
#define VKATTN_TESTS_GPU_H

#include <volk.h>

#include <stdbool.h>
#include <vkattn/helper.h>
#include <vkattn/reference.h>

/* ---- Devices --------------------------------------------------------------------------------------------------- */

/* The device that the environment gives, VKATTN_LIMIT_ bits applied. Skips the test when there is none. */
vkattn_context *gpu_open(uint32_t limits);

/* Close it; any message of the validation layer, also about what was left behind, fails the test. */
void gpu_close(vkattn_context *context);

/* Let a message of the validation layer pass that holds `part`, for a fault of a driver that a test cannot avoid. */
void gpu_allow(const char *part);

/* What hands `context` to the library once more, to be changed and passed to vkattn_device_create. */
vkattn_device_info gpu_info(const vkattn_context *context);

bool gpu_is_cpu(const vkattn_context *context);

/* SwiftShader: a hundred times slower than llvmpipe. Tests repeat less there. */
bool gpu_is_slow(const vkattn_context *context);

/* ---- Statuses -------------------------------------------------------------------------------------------------- */

/* The call must have returned `expected`, and its sentence must hold `part`. */
void gpu_expect(vkattn_status got, vkattn_status expected, const char *part);

/* The call must have succeeded. */
void gpu_ok(vkattn_status status);
void gpu_vk(VkResult result, const char *call);
#define GPU_VK(call) gpu_vk(call, #call)

/* ---- Problems -------------------------------------------------------------------------------------------------- */

enum { GPU_TENSORS = 6 }; /* q, k, v, o, lse, weights: what a problem of these tests may use */

/* A problem with random inputs and poisoned outputs in host memory. */
struct gpu_case {
    vkattn_problem problem;
    void *data[GPU_TENSORS]; /* NULL: not used */
    size_t size[GPU_TENSORS];
    /* Borrowed. */
    const void *mask, *bias;
    const float *alibi, *sinks;
    const int32_t *kv_lengths, *q_lengths, *prefix, *q_segments, *kv_segments;
    vkattn_dtype p_type; /* to which the kernel rounds P: 0, VKATTN_F32, for none */
};

extern const unsigned char gpu_poison;

struct gpu_case gpu_case_make(const vkattn_problem *problem);
void gpu_case_free(struct gpu_case *c);
vkattn_tensors gpu_case_tensors(const struct gpu_case *c);
void gpu_case_poison(struct gpu_case *c);

/* Whether no byte of the outputs was written. */
bool gpu_case_untouched(const struct gpu_case *c);

/* The outputs that `lengths` cover (NULL: all) must be within the reference's bounds, and every other byte must be
 * untouched. `what` names the case in a failure. */
void gpu_case_expect(const struct gpu_case *c, const vkattn_lengths *lengths, const char *what);

/* A plan; NULL where the forced kernel refuses, or computes no O. */
vkattn_plan *gpu_plan_if_can(vkattn_device *device, const vkattn_problem *problem, const vkattn_options *options);

/* ---- Buffers and recording ------------------------------------------------------------------------------------- */

/* The tensors of a case, and a workspace, each in a mapped buffer of its own. */
struct gpu_buffers {
    vkattn_mapped tensors[GPU_TENSORS];
    vkattn_mapped workspace;
    vkattn_buffers buffers; /* what vkattn_record takes */
};

struct gpu_buffers gpu_buffers_make(vkattn_context *context, const struct gpu_case *c, const vkattn_plan *plan);
void gpu_buffers_free(vkattn_context *context, struct gpu_buffers *b);

/* Copy a case's outputs into its buffers, and back. */
void gpu_buffers_put(const struct gpu_buffers *b, const struct gpu_case *c);
void gpu_buffers_get(const struct gpu_buffers *b, struct gpu_case *c);

/* Record one plan into a command buffer of its own, submit and wait. */
vkattn_status gpu_run(vkattn_context *context, const vkattn_plan *plan, const vkattn_buffers *buffers,
                      const vkattn_lengths *lengths);

/* The first type of `allowed` that the host can map, coherently. */
uint32_t gpu_memory_type(const vkattn_context *context, uint32_t allowed);

#endif

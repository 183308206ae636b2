/*
 * The definition of attention as a program: forward in double on the CPU, a literal transcription of the formulas of
 * vkattn.h. It shares no code with the GPU kernels, so that agreement is evidence. Slow by design; the loop over rows
 * uses OpenMP where the library was built with it.
 */
#ifndef VKATTN_REFERENCE_H
#define VKATTN_REFERENCE_H

#include <vkattn/vkattn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the reference computes, dense whatever the problem's layouts are; each pointer may be NULL. Shapes use the
 * lengths of the call. */
typedef struct vkattn_reference {
    double *o;             /* [batch, heads, len_q, dim_v] */
    double *lse;           /* [batch, heads, len_q], in the base that the problem asks for */
    double *weights;       /* [batch, heads, len_q, len_kv]; 0 where not visible */
    double *o_bound;       /* most that an element of O may be off: vkattn.h's promise, docs/numerics.md */
    double *lse_bound;     /* the same for LSE */
    double *weights_bound; /* the same for W */
} vkattn_reference;

/*
 * Compute the forward pass in double.
 *
 * tensors  inputs as the problem lays them out; outputs are ignored. Lengths and prefixes are clamped as on a device.
 * lengths  NULL: the problem's.
 * p_type   the type to which the kernel under test declares that it rounds P: VKATTN_F32 for none.
 *
 * A bound is +infinity where a score leaves the range of f32, since no f32 kernel can then answer.
 * Returns VKATTN_OK
 *         VKATTN_INVALID    problem, lengths, p_type, or a missing tensor; nothing was written
 *         VKATTN_NO_MEMORY  some rows of the outputs were perhaps written.
 * Threads: any.
 */
VKATTN_API vkattn_status vkattn_reference_forward_sized(const vkattn_problem *problem, size_t problem_size,
                                                        const vkattn_tensors *tensors, size_t tensors_size,
                                                        const vkattn_lengths *lengths, vkattn_dtype p_type,
                                                        const vkattn_reference *out, size_t out_size);
static inline vkattn_status vkattn_reference_forward(const vkattn_problem *problem, const vkattn_tensors *tensors,
                                                     const vkattn_lengths *lengths, vkattn_dtype p_type,
                                                     const vkattn_reference *out)
{
    return vkattn_reference_forward_sized(problem, sizeof *problem, tensors, sizeof *tensors, lengths, p_type, out,
                                          sizeof *out);
}

/* The tensors of a merge in host memory, laid out as it says. */
typedef struct vkattn_merge_tensors {
    const void *first_o;
    const float *first_lse;
    const void *second_o;
    const float *second_lse;
} vkattn_merge_tensors;

/*
 * Merge in double: o, lse and their bounds of `out` are written, dense; its weights are not.
 *
 * lengths  NULL: the merge's. len_kv is ignored.
 * Returns VKATTN_OK, VKATTN_INVALID. Threads: any.
 */
VKATTN_API vkattn_status vkattn_reference_merge_sized(const vkattn_merge *merge, size_t merge_size,
                                                      const vkattn_merge_tensors *tensors, size_t tensors_size,
                                                      const vkattn_lengths *lengths, const vkattn_reference *out,
                                                      size_t out_size);
static inline vkattn_status vkattn_reference_merge(const vkattn_merge *merge, const vkattn_merge_tensors *tensors,
                                                   const vkattn_lengths *lengths, const vkattn_reference *out)
{
    return vkattn_reference_merge_sized(merge, sizeof *merge, tensors, sizeof *tensors, lengths, out, sizeof *out);
}

/* Of a type that is none of the three values, these take it as VKATTN_BF16. */

/* Bytes of one element. Threads: any. */
VKATTN_API size_t vkattn_dtype_size(vkattn_dtype type);

/* The value of the element at `element`, which needs no alignment. Threads: any. */
VKATTN_API float vkattn_decode(vkattn_dtype type, const void *element);

/* Store `value` at `element`, rounded to nearest even; overflow gives infinity, NaN a quiet NaN. Threads: any. */
VKATTN_API void vkattn_encode(vkattn_dtype type, float value, void *element);

#ifdef __cplusplus
}
#endif

#endif

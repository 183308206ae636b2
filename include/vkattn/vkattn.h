/*
 * vkattn: exact attention on any Vulkan device.
 *
 * This header describes problems, plans and the calls that need no Vulkan type. vkattn/vulkan.h joins them to a
 * VkDevice and a VkCommandBuffer; vkattn/reference.h is the double-precision definition that the tests compare with.
 *
 * For batch b, query head h, query i, key j, and g = h / (heads / kv_heads):
 *
 *     s[j]   = scale * sum_r Q[b,h,i,r] K[b,g,j,r]
 *     s[j]   = softcap * tanh(s[j] / softcap)                            if softcap is set
 *     s[j]  += bias[b,h,i,j] - slope[h] * |j - i'|                       if given; i' = i, or i + Tk - Tq (align)
 *     p[j]   = exp(s[j] - m) where visible(i, j), else 0                 m = max over visible j (and the sink)
 *     l      = sum_j p[j] (+ exp(sink[h] - m))
 *     O[i]   = sum_j p[j] V[b,g,j] / l      LSE[i] = m + log l           W[i,j] = p[j] / l
 *
 * (i, j) is visible when all of these that are in use hold: j < kv_length[b]; i < q_length[b];
 * -left <= j - i' <= right, or j < prefix[b]; q_segment[i] == kv_segment[j]; the mask says so; bias is not -inf.
 * A query that sees no key has O = 0, W = 0 and LSE = -infinity (the sink's logit where there is a sink).
 * What a query does not see may hold anything, NaN included, and does not reach its outputs. A query that sees a score
 * of NaN or +infinity, or no score (its sink included) above -infinity, or has a sink of NaN or +infinity and sees a
 * key, is NaN in O, in LSE and in the W of the keys that it sees; it alone. A NaN or an infinity of V reaches the O of
 * the queries that see it, and nothing else.
 *
 * Conventions: every struct may start as {0}, and each zero is the documented default. Strides are in elements of the
 * tensor's own type, never bytes. Nothing prints; a failing call returns a status and leaves one sentence in
 * vkattn_last_error().
 *
 * A function NAME_sized takes, behind each struct, its size in bytes as the caller was compiled: sizeof, which the
 * inline NAME passes. Members that a shorter struct (of an older header) lacks are 0; of a longer one what this library
 * does not know must be 0, else the call is VKATTN_INVALID. Of a struct that is an output, that many bytes are written.
 * Language bindings call NAME_sized.
 *
 * Sources: attention, Vaswani et al. 2017 (arXiv:1706.03762); online softmax, Milakov and Gimelshein 2018
 * (arXiv:1805.02867); tiling, Dao 2023 (arXiv:2307.08691); grouped heads, Ainslie et al. 2023 (arXiv:2305.13245).
 */
#ifndef VKATTN_VKATTN_H
#define VKATTN_VKATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VKATTN_VERSION_MAJOR 0
#define VKATTN_VERSION_MINOR 1
#define VKATTN_VERSION_PATCH 0
#define VKATTN_VERSION       (VKATTN_VERSION_MAJOR * 10000 + VKATTN_VERSION_MINOR * 100 + VKATTN_VERSION_PATCH)

#if defined(VKATTN_SHARED) && defined(_WIN32)
#ifdef VKATTN_BUILD
#define VKATTN_API __declspec(dllexport)
#else
#define VKATTN_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define VKATTN_API __attribute__((visibility("default")))
#else
#define VKATTN_API
#endif

/* ---- Status ---------------------------------------------------------------------------------------------------- */

typedef enum vkattn_status {
    VKATTN_OK = 0,
    VKATTN_INVALID = 1,     /* an argument is wrong; the sentence names the field and the value */
    VKATTN_UNSUPPORTED = 2, /* valid, but this device or the chosen kernel cannot do it; the sentence says why */
    VKATTN_NO_MEMORY = 3,   /* host or device memory is exhausted */
    VKATTN_DEVICE_LOST = 4, /* the driver lost the device: destroy it */
    VKATTN_FAILED = 5       /* the driver returned another error; the sentence holds the VkResult */
} vkattn_status;

/* The name of a status, "VKATTN_OK" and so on; never NULL. Threads: any. */
VKATTN_API const char *vkattn_status_name(vkattn_status status);

/* One sentence about the last call of this thread that did not return VKATTN_OK; "" if there was none. The text
 * belongs to the thread and stays until its next failing call. Threads: each has its own. */
VKATTN_API const char *vkattn_last_error(void);

/* Keep `text` (copied, cut at 511 bytes) for vkattn_last_error and return `status`: for layers above the library, such
 * as vkattn/helper.h and language bindings. Threads: each has its own. */
VKATTN_API vkattn_status vkattn_error_set(vkattn_status status, const char *text);

/* VKATTN_VERSION of the library that runs, which may be newer than this header. Threads: any. */
VKATTN_API uint32_t vkattn_version(void);

/* ---- The problem ----------------------------------------------------------------------------------------------- */

/* The largest dim_qk and dim_v. */
#define VKATTN_MAX_DIM 576u

typedef enum vkattn_dtype {
    VKATTN_F32 = 0,
    VKATTN_F16 = 1, /* IEEE 754 binary16 */
    VKATTN_BF16 = 2 /* the upper half of an f32 */
} vkattn_dtype;

typedef enum vkattn_order {
    VKATTN_BHTD = 0,   /* dense [batch, head, row, element] */
    VKATTN_BTHD = 1,   /* dense [batch, row, head, element] */
    VKATTN_STRIDED = 2 /* as the three strides say; a stride of 0 broadcasts */
} vkattn_order;

/* Where the rows of a tensor lie. The elements of one row are always adjacent. The strides count elements (of a bit
 * mask: bits) and are read only with VKATTN_STRIDED; with another order they must be 0. One (batch, head) slice spans
 * less than 4 GiB; the whole tensor may span more. Outputs may not broadcast or overlap themselves. */
typedef struct vkattn_layout {
    vkattn_order order;
    uint64_t batch;
    uint64_t head;
    uint64_t row;
} vkattn_layout;

typedef enum vkattn_align {
    VKATTN_ALIGN_UNSTATED = 0, /* invalid as soon as the band or ALiBi needs it */
    VKATTN_TOP_LEFT = 1,       /* i' = i (PyTorch's is_causal) */
    VKATTN_BOTTOM_RIGHT =
        2 /* i' = i + Tk - Tq, of the member's own lengths (FlashAttention >= 2.1, TVM, ONNX Runtime) */
} vkattn_align;

typedef enum vkattn_mask_kind {
    VKATTN_MASK_NONE = 0,
    VKATTN_MASK_BYTES = 1, /* one byte per (i, j); nonzero is True */
    VKATTN_MASK_BITS = 2   /* one bit per (i, j), the lowest bit of a byte first; nonzero is True. A dense row is padded
                              to   whole bytes (numpy.packbits(..., axis=-1, bitorder="little")) */
} vkattn_mask_kind;

typedef enum vkattn_mask_true {
    VKATTN_TRUE_UNSTATED = 0, /* invalid as soon as there is a mask: both conventions are in use */
    VKATTN_TRUE_ATTENDS = 1,  /* PyTorch's scaled_dot_product_attention */
    VKATTN_TRUE_IGNORES = 2   /* torch.nn.MultiheadAttention */
} vkattn_mask_true;

/* Bits of vkattn_problem.flags: what takes part. Each one that reads a tensor makes that tensor required. */
enum {
    VKATTN_CAUSAL = 1u << 0,      /* j - i' <= 0 */
    VKATTN_LEFT = 1u << 1,        /* j - i' >= -left */
    VKATTN_RIGHT = 1u << 2,       /* j - i' <= right */
    VKATTN_PREFIX = 1u << 3,      /* prefix: int32 [batch]; clamped to 0..len_kv on the device */
    VKATTN_KV_LENGTHS = 1u << 4,  /* kv_lengths: int32 [batch]; clamped to 0..len_kv on the device */
    VKATTN_Q_LENGTHS = 1u << 5,   /* q_lengths: int32 [batch]; clamped to 0..len_q on the device */
    VKATTN_SEGMENTS = 1u << 6,    /* q_segments: int32 [batch, len_q]; kv_segments: int32 [batch, len_kv] */
    VKATTN_BIAS = 1u << 7,        /* bias: bias_type [batch, heads, len_q, len_kv] */
    VKATTN_ALIBI = 1u << 8,       /* alibi: float [heads], the slopes */
    VKATTN_SINKS = 1u << 9,       /* sinks: float [heads], one logit each */
    VKATTN_WRITE_LSE = 1u << 10,  /* lse: float [batch, heads, len_q] */
    VKATTN_LSE_BASE_2 = 1u << 11, /* LSE is stored divided by log 2 */
    VKATTN_WRITE_WEIGHTS =
        1u << 12 /* weights: float [batch, heads, len_q, len_kv]; costs a second pass and B H Tq Tk floats */
};

/*
 * One attention. Zero-initialise it, then set what differs from the default.
 *
 *     tensor       shape                             type            required
 *     q            [batch, heads,    len_q,  dim_qk]  q_type          yes
 *     k            [batch, kv_heads, len_kv, dim_qk]  kv_type         yes
 *     v            [batch, kv_heads, len_kv, dim_v ]  kv_type         yes
 *     o            [batch, heads,    len_q,  dim_v ]  o_type          yes
 *     lse          [batch, heads,    len_q         ]  float           VKATTN_WRITE_LSE
 *     weights      [batch, heads,    len_q,  len_kv]  float           VKATTN_WRITE_WEIGHTS
 *     mask         [batch, heads,    len_q,  len_kv]  mask_kind       mask_kind != VKATTN_MASK_NONE
 *     bias         [batch, heads,    len_q,  len_kv]  bias_type       VKATTN_BIAS
 *
 * len_q and len_kv are capacities: dense layouts are computed from them, and a record or host call may use less
 * (vkattn_lengths). They may be 0 and are at most 2^29 - 1. The row of lse is one float; its row stride counts from
 * query to query.
 */
typedef struct vkattn_problem {
    uint32_t batch;    /* 0: 1 */
    uint32_t heads;    /* query heads; 0: 1 */
    uint32_t kv_heads; /* divides heads; 0: heads */
    uint32_t len_q;
    uint32_t len_kv;
    uint32_t dim_qk; /* 1 to VKATTN_MAX_DIM */
    uint32_t dim_v;  /* 1 to VKATTN_MAX_DIM; 0: dim_qk */
    vkattn_dtype q_type;
    vkattn_dtype kv_type; /* of K and V */
    vkattn_dtype o_type;
    vkattn_dtype bias_type; /* read with VKATTN_BIAS */
    uint32_t flags;
    vkattn_align align; /* of the band and of ALiBi; has no effect without them */
    int32_t left;       /* read with VKATTN_LEFT; may be negative */
    int32_t right;      /* read with VKATTN_RIGHT; may be negative */
    vkattn_mask_kind mask_kind;
    vkattn_mask_true mask_true;
    float scale;   /* finite; 0: 1/sqrt(dim_qk) */
    float softcap; /* finite, not negative; 0: none */
    vkattn_layout q, k, v, o, lse, weights, mask, bias;
} vkattn_problem;

/*
 * Two attentions over disjoint keys, joined into the one over all of them: a shared prefix and what follows it, or the
 * shards of ring attention. For each row, from O and LSE of both,
 *
 *     LSE = log(exp(LSE_first) + exp(LSE_second))     O = exp(LSE_first - LSE) O_first + exp(LSE_second - LSE) O_second
 *
 * A part whose LSE is -infinity saw nothing, and its O may hold anything, NaN included. Where both are empty, O = 0 and
 * LSE = -infinity. An LSE of NaN or +infinity makes the row NaN. At most one of the parts may have had the sinks.
 *
 *     tensor                  shape                          type
 *     first_o,   second_o     [batch, heads, len_q, dim_v]   part_type
 *     first_lse, second_lse   [batch, heads, len_q]          float
 *     o                       [batch, heads, len_q, dim_v]   o_type
 *     lse                     [batch, heads, len_q]          float, with VKATTN_WRITE_LSE
 *
 * In place: o may be first_o or second_o where it has its type and layout, and lse may be first_lse or second_lse where
 * it has its layout. Zero-initialise it, as a problem.
 */
typedef struct vkattn_merge {
    uint32_t batch; /* 0: 1 */
    uint32_t heads; /* 0: 1 */
    uint32_t len_q; /* a capacity, as in a problem */
    uint32_t dim_v; /* 1 to VKATTN_MAX_DIM */
    vkattn_dtype part_type;
    vkattn_dtype o_type;
    uint32_t flags; /* VKATTN_WRITE_LSE, VKATTN_LSE_BASE_2 (of all three); nothing else */
    vkattn_layout first_o, first_lse, second_o, second_lse, o, lse;
} vkattn_merge;

/* The lengths of one call, at most the problem's. Both are taken as they are, 0 included; a NULL pointer where this
 * struct is asked for means the problem's own. Bounds of the band with VKATTN_BOTTOM_RIGHT refer to them, or to the
 * member's kv_lengths and q_lengths where those are used. Strides stay as the problem says. */
typedef struct vkattn_lengths {
    uint32_t len_q;
    uint32_t len_kv;
} vkattn_lengths;

/* Check a problem without a device.
 * Returns VKATTN_OK or VKATTN_INVALID. Threads: any. */
VKATTN_API vkattn_status vkattn_problem_check_sized(const vkattn_problem *problem, size_t problem_size);
static inline vkattn_status vkattn_problem_check(const vkattn_problem *problem)
{
    return vkattn_problem_check_sized(problem, sizeof *problem);
}

/* ---- Devices and plans ----------------------------------------------------------------------------------------- */

/* A device that plans are made for: vkattn_device_create (vkattn/vulkan.h), or vkattn_open (vkattn/helper.h).
 * Threads: calls on one device may run concurrently, except its destruction. */
typedef struct vkattn_device vkattn_device;

/* A planned problem: kernels, tiles, pipelines. Immutable; any number of threads may record it at once. */
typedef struct vkattn_plan vkattn_plan;

typedef enum vkattn_access {
    VKATTN_ACCESS_AUTO = 0,
    VKATTN_ACCESS_ADDRESS = 1,   /* buffer device addresses */
    VKATTN_ACCESS_DESCRIPTOR = 2 /* push descriptors */
} vkattn_access;

/* How to plan. Zero, or a NULL pointer, lets the library choose. */
typedef struct vkattn_options {
    const char *kernel;   /* force this kernel; NULL: the cheapest */
    vkattn_access access; /* force a way of reaching tensors */
    uint32_t tile;        /* 1-based row of the kernel's tile table, with a forced kernel only; 0: the first row that
                             is for the device and the widths and can run */
    uint64_t max_work;    /* most score elements (queries times keys) in one dispatch; 0: no limit. Results do not
                             depend on it, bit for bit. Windows resets a GPU after 2 s: cut long work there */
    uint32_t mid_word_starts; /* nonzero: 16-bit K and V are expected to start in mid-word. Without it such a call is
                                 right, but runs a kernel for any shape, which is slow */
    uint32_t parts;           /* into which fwd_decode cuts the keys, at most VKATTN_MAX_PARTS; 0: from the device's
                                 width. With a number given, what a batch member gets does not depend on the others,
                                 bit for bit. Other kernels do not cut the keys */
} vkattn_options;

#define VKATTN_MAX_KERNELS 16u

/* The most parts of the keys. */
#define VKATTN_MAX_PARTS 1024u

/* What planning thought of one kernel. */
typedef struct vkattn_candidate {
    const char *kernel; /* static */
    vkattn_access access;
    uint32_t tile;       /* 1-based row of the kernel's tile table; 0 when refused */
    vkattn_dtype p_type; /* the type to which it rounds P, VKATTN_F32 for none; its error bound depends on it */
    double cost;         /* an estimate, in a unit that compares kernels within one report; 0 when refused */
    char reason[192];    /* why it was refused; "" when it can run */
} vkattn_candidate;

/* What a problem gets on a device, and what it costs. */
typedef struct vkattn_report {
    vkattn_candidate candidates[VKATTN_MAX_KERNELS];
    uint32_t candidate_count;
    int32_t chosen;      /* index in candidates; -1: no kernel runs it */
    uint32_t step_count; /* of the plan: perhaps kv_unpack, a forward kernel, perhaps fwd_weights */
    char tile[96];       /* the chosen tile in words */
    double flops;        /* 2 B H Tq Tk (dim_qk + dim_v), less what the band and the lengths of the problem exclude */
    double bytes_moved; /* every tensor that the problem uses, once each: Q, K, V, O, and where used LSE, weights, mask,
                           bias, slopes, sinks, lengths, prefix and segments; of mask and bias what broadcasts counts
                           once */
    double score_bytes; /* f32 bytes of the B H Tq Tk score matrix that is never written */
    uint64_t workspace_size; /* bytes */
} vkattn_report;

/* Say which kernel a problem gets on a device and why the others refuse. Compiles nothing. A kernel that needs a step
 * before or behind it which cannot run (copies of K and V that a descriptor does not reach, say) has refused with that
 * step's reason. options may be NULL.
 *
 * Returns VKATTN_OK
 *         VKATTN_INVALID      the problem or an option is wrong; *report is zeroed
 *         VKATTN_UNSUPPORTED  no kernel, or not the forced one, runs it. report->candidates hold the reasons (of a
 *                             kernel that was not forced perhaps none); chosen is -1, step_count, tile and
 *                             workspace_size are 0, and the work and the bytes are those of the problem.
 * Threads: any. */
VKATTN_API vkattn_status vkattn_explain_sized(const vkattn_device *device, const vkattn_problem *problem,
                                              size_t problem_size, const vkattn_options *options, size_t options_size,
                                              vkattn_report *report, size_t report_size);
static inline vkattn_status vkattn_explain(const vkattn_device *device, const vkattn_problem *problem,
                                           const vkattn_options *options, vkattn_report *report)
{
    return vkattn_explain_sized(device, problem, sizeof *problem, options, sizeof *options, report, sizeof *report);
}

/*
 * Plan one problem: choose kernels, build their pipelines if this device has not built them yet, size the workspace.
 * Nothing runs on the GPU.
 *
 * device   borrowed; must outlive the plan.
 * problem  read during the call only.
 * options  may be NULL.
 * plan     receives the plan; NULL on failure. Free it with vkattn_plan_destroy.
 *
 * Returns VKATTN_OK
 *         VKATTN_INVALID      a field or a combination of fields is wrong
 *         VKATTN_UNSUPPORTED  valid, but no kernel (or not the forced one) runs it on this device
 *         VKATTN_NO_MEMORY, VKATTN_DEVICE_LOST, VKATTN_FAILED  from the driver.
 * Threads: any; equal pipelines are built once. Cost: a few microseconds, and for each new pipeline what the driver's
 * compiler takes: 10 ms to seconds. Some drivers (llvmpipe) leave a part of that to the first execution.
 */
VKATTN_API vkattn_status vkattn_plan_create_sized(vkattn_device *device, const vkattn_problem *problem,
                                                  size_t problem_size, const vkattn_options *options,
                                                  size_t options_size, vkattn_plan **plan);
static inline vkattn_status vkattn_plan_create(vkattn_device *device, const vkattn_problem *problem,
                                               const vkattn_options *options, vkattn_plan **plan)
{
    return vkattn_plan_create_sized(device, problem, sizeof *problem, options, sizeof *options, plan);
}

/* Plan a merge: as vkattn_plan_create, and the plan is one like others, except that vkattn_record_merge records it.
 * options  may be NULL; access and max_work are read, kernel, tile, parts and mid_word_starts must be 0. */
VKATTN_API vkattn_status vkattn_plan_create_merge_sized(vkattn_device *device, const vkattn_merge *merge,
                                                        size_t merge_size, const vkattn_options *options,
                                                        size_t options_size, vkattn_plan **plan);
static inline vkattn_status vkattn_plan_create_merge(vkattn_device *device, const vkattn_merge *merge,
                                                     const vkattn_options *options, vkattn_plan **plan)
{
    return vkattn_plan_create_merge_sized(device, merge, sizeof *merge, options, sizeof *options, plan);
}

/* Free a plan; NULL is ignored. Pipelines stay with the device. Command buffers that recorded it stay valid.
 * Threads: any, but no other call may be using the plan. */
VKATTN_API void vkattn_plan_destroy(vkattn_plan *plan);

/* The name of the forward kernel that a plan uses; static. A recording whose 16-bit K or V starts in mid-word may run
 * fwd_rows instead (vkattn_options.mid_word_starts). Threads: any. */
VKATTN_API const char *vkattn_plan_kernel(const vkattn_plan *plan);

/* The catalogue: names of all kernels, static; NULL past the end. Threads: any. */
VKATTN_API const char *vkattn_kernel_name(uint32_t index);

/* Why this build lacks the module of a kernel of the catalogue, which it then refuses with; NULL: it has it. */
VKATTN_API const char *vkattn_kernel_missing(uint32_t index);

/* ---- Host memory ----------------------------------------------------------------------------------------------- */

/* The tensors of one problem in host memory, laid out as the problem says. A pointer that the problem does not use is
 * ignored; one that it uses must be aligned to its element. Lengths, prefixes and segments are int32. */
typedef struct vkattn_tensors {
    const void *q, *k, *v;
    void *o;
    float *lse;
    float *weights;
    const void *mask;
    const void *bias;
    const float *alibi;
    const float *sinks;
    const int32_t *kv_lengths, *q_lengths, *prefix;
    const int32_t *q_segments, *kv_segments;
} vkattn_tensors;

/*
 * Compute attention on tensors in host memory: plan, copy in, run, wait, copy out. For tests, tools and first steps;
 * an application that has a command buffer records a plan instead (vkattn/vulkan.h).
 *
 * Needs a device that was created with a queue. Only elements of the outputs are written.
 *
 * lengths and options may be NULL.
 * Returns as vkattn_plan_create, and VKATTN_INVALID when a tensor is missing or the device has no queue.
 * On failure the outputs are untouched. Threads: any; the queue is used under a lock of the device, and the caller must
 * not use it meanwhile.
 */
VKATTN_API vkattn_status vkattn_attend_sized(vkattn_device *device, const vkattn_problem *problem, size_t problem_size,
                                             const vkattn_options *options, size_t options_size,
                                             const vkattn_tensors *tensors, size_t tensors_size,
                                             const vkattn_lengths *lengths);
static inline vkattn_status vkattn_attend(vkattn_device *device, const vkattn_problem *problem,
                                          const vkattn_options *options, const vkattn_tensors *tensors,
                                          const vkattn_lengths *lengths)
{
    return vkattn_attend_sized(device, problem, sizeof *problem, options, sizeof *options, tensors, sizeof *tensors,
                               lengths);
}

#ifdef __cplusplus
}
#endif

#endif

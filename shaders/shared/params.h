/*
 * What the host tells a kernel, read by C and by GLSL: the parameter block that record writes into the head of the
 * workspace, the push constants that differ between the dispatches of one call, specialization ids and codes.
 *
 * 64-bit numbers are uvec2 (low word first): no kernel needs shaderInt64.
 */
#ifndef VKATTN_PARAMS_H
#define VKATTN_PARAMS_H

#ifdef VKATTN_GLSL
#define VKA_U64 uvec2
#define VKA_U32 uint
#define VKA_I32 int
#define VKA_F32 float
#define VKA_STRUCT(name) struct name
#else
#include <stdint.h>
#define VKA_U64 uint64_t
#define VKA_U32 uint32_t
#define VKA_I32 int32_t
#define VKA_F32 float
#define VKA_STRUCT(name)      \
    typedef struct name name; \
    struct name
#endif

/* Tensors, in the order of enum tensor_id (src/problem.h). Binding n + 1 is tensor n; binding 0 is the workspace. */
#define VKA_Q 0
#define VKA_K 1
#define VKA_V 2
#define VKA_O 3
#define VKA_LSE 4
#define VKA_WEIGHTS 5
#define VKA_MASK 6
#define VKA_BIAS 7
#define VKA_ALIBI 8
#define VKA_SINKS 9
#define VKA_KV_LENGTHS 10
#define VKA_Q_LENGTHS 11
#define VKA_PREFIX 12
#define VKA_Q_SEGMENTS 13
#define VKA_KV_SEGMENTS 14
#define VKA_K_COPY 15 /* K and V as f32 in the workspace, rows padded to four elements */
#define VKA_V_COPY 16
#define VKA_SUMS 17 /* what accumulators were folded into, f32, rows padded to four elements */
#define VKA_PARTS 18 /* sums of p V of each part of the keys, f32, rows padded to four elements */
#define VKA_STATS 19 /* four words for each row of VKA_PARTS: maximum, sum of exponentials, VKA_PART_ bits, 0 */
#define VKA_TENSORS 20

/* The tensors of a merge that an attention has not take places of others. */
#define VKA_FIRST_O VKA_K
#define VKA_SECOND_O VKA_V
#define VKA_FIRST_LSE VKA_Q
#define VKA_SECOND_LSE VKA_WEIGHTS

/* What a row of one part met. */
#define VKA_PART_SEEN 1u   /* at least one visible key */
#define VKA_PART_POISON 2u /* a score of NaN or +inf */

/* Codes of storage types (vkattn_dtype) and mask kinds (vkattn_mask_kind). */
#define VKA_TYPE_F32 0
#define VKA_TYPE_F16 1
#define VKA_TYPE_BF16 2
#define VKA_TYPE_NONE 3
#define VKA_MASK_NONE 0
#define VKA_MASK_BYTES 1
#define VKA_MASK_BITS 2

/* A specialization constant of this value means: read it from params. One pipeline then serves every value. */
#define VKA_FROM_PARAMS 0xFFFFFFFFu

/* Bits of params.features: what takes part. */
#define VKA_SOFTCAP 0x1u
#define VKA_ALIBI_ON 0x2u
#define VKA_SEGMENTS_ON 0x4u
#define VKA_MASK_IGNORES 0x8u /* a True of the mask hides the key */
/* Bits that a kernel always reads from params, since they cost nothing in a loop over keys. */
#define VKA_BOTTOM_RIGHT 0x100u
#define VKA_PREFIX_ON 0x200u
#define VKA_KV_LENGTHS_ON 0x400u
#define VKA_Q_LENGTHS_ON 0x800u
#define VKA_SINKS_ON 0x1000u
#define VKA_LSE_ON 0x2000u
#define VKA_LSE_BASE_2 0x4000u

/* Bits that may be specialised. */
#define VKA_FEATURES_SPECIALISED 0xFFu

/* Specialization constant ids. */
#define VKA_ID_WORKGROUP 0 /* invocations */
#define VKA_ID_DIM_QK 1
#define VKA_ID_DIM_V 2
#define VKA_ID_Q_TYPE 3
#define VKA_ID_KV_TYPE 4
#define VKA_ID_O_TYPE 5
#define VKA_ID_BIAS_TYPE 6 /* VKA_TYPE_NONE: no bias */
#define VKA_ID_MASK_KIND 7
#define VKA_ID_FEATURES 8
#define VKA_ID_ROWS 9     /* packed rows of a work group of fwd_decode */
#define VKA_ID_KEYS 10    /* keys per step */
#define VKA_ID_QK_KEYS 11 /* keys per pass over the query; divides KEYS */
#define VKA_ID_PV_KEYS 12 /* keys per pass over the accumulator; divides KEYS */
#define VKA_ID_SPLIT 13   /* parts of the head dimension, one for each group of subgroups */
#define VKA_ID_SUBGROUP 14 /* subgroup size that every subgroup is known to have; 0: unknown */
#define VKA_ID_UNPACKED 15 /* nonzero: K and V are read from their f32 copies */
#define VKA_ID_FOLD 16 /* keys after which accumulators are folded into VKA_SUMS; 0: never */
#define VKA_ID_UNIFORM 17 /* vectors of words are put together from loads at uniform addresses, for so many lanes; 0: not */
#define VKA_ID_SHIFTED 18 /* nonzero: rows of 16-bit K and V may start in mid-word, and are read so */
#define VKA_ID_SPREAD 19 /* lanes over which a row of K or V is spread; 0: lanes are keys */
#define VKA_ID_ONE_QUERY 20 /* nonzero: len_q is 1 at most, so that all rows see the same keys of a band */
#define VKA_ID_MATRIX_M 21 /* a cooperative matrix: rows and columns of the result, length of the products */
#define VKA_ID_MATRIX_N 22
#define VKA_ID_MATRIX_K 23
#define VKA_ID_SKIP 24 /* nonzero: a subgroup may meet fewer of its own barriers than another */
#define VKA_ID_ROLLED 25 /* nonzero: what is done once a row is a loop over an array in memory */
#define VKA_IDS 26

/* A band's bound that excludes nothing. Lengths stay below half of it, so that no sum of two of them and a bound
 * overflows an int. */
#define VKA_UNBOUNDED 0x40000000
#define VKA_MAX_LENGTH 0x1FFFFFFFu

/* One tensor. `address` is the device address of its first byte, or in descriptor mode that byte's offset in the
 * binding; strides are in elements. */
VKA_STRUCT(vka_tensor)
{
    VKA_U64 address;
    VKA_U64 batch_stride;
    VKA_U64 head_stride;
    VKA_U32 row_stride;
    VKA_U32 unused;
};

VKA_STRUCT(vka_params)
{
    vka_tensor tensors[VKA_TENSORS];
    VKA_U32 batch;
    VKA_U32 heads;
    VKA_U32 group; /* query heads per kv head */
    VKA_U32 len_q;
    VKA_U32 len_kv;
    VKA_U32 dim_qk;
    VKA_U32 dim_v;
    VKA_U32 q_type;
    VKA_U32 kv_type;
    VKA_U32 o_type;
    VKA_U32 bias_type;
    VKA_U32 mask_kind;
    VKA_U32 features;
    VKA_I32 left;  /* VKA_UNBOUNDED: no bound */
    VKA_I32 right; /* VKA_UNBOUNDED: no bound; causal is folded in */
    VKA_F32 scale;
    VKA_F32 softcap;
    VKA_U32 parts; /* of the keys; 1 where they are not cut */
};

VKA_STRUCT(vka_push)
{
    VKA_U64 params; /* device address of the parameter block; unused with descriptors, where it heads binding 0 */
    VKA_U32 first;  /* first work group of this dispatch, counted over row blocks, heads and batch */
    VKA_U32 count;  /* work groups of this dispatch */
    VKA_U32 row_blocks; /* row blocks of one head, as this step counts them */
    VKA_U32 unused;
};

#endif

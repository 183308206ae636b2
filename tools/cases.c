#include "cases.h"

#define SQUARE(H, T, D, TYPE, ...)                                                                     \
    {                                                                                                  \
        .heads = (H), .len_q = (T), .len_kv = (T), .dim_qk = (D), .q_type = (TYPE), .kv_type = (TYPE), \
        .o_type = (TYPE), __VA_ARGS__                                                                  \
    }

const struct bench_case bench_cases[BENCH_CASES] = {
    {"prefill-f32-d32", SQUARE(8, 1024, 32, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d64", SQUARE(8, 1024, 64, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d96", SQUARE(8, 1024, 96, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d128", SQUARE(8, 1024, 128, VKATTN_F32, .flags = 0)},
    {"prefill-f32-d256", SQUARE(8, 1024, 256, VKATTN_F32, .flags = 0)},
    {"prefill-f16-d64", SQUARE(8, 1024, 64, VKATTN_F16, .flags = 0)},
    {"prefill-f16-d128", SQUARE(8, 1024, 128, VKATTN_F16, .flags = 0)},
    {"prefill-bf16-d128", SQUARE(8, 1024, 128, VKATTN_BF16, .flags = 0)},
    {"causal-f16-d64", SQUARE(8, 1024, 64, VKATTN_F16, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"causal-f16-d128", SQUARE(8, 1024, 128, VKATTN_F16, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"softcap-f32-d64", SQUARE(8, 1024, 64, VKATTN_F32, .softcap = 30)},
    {"square-f32-d64-t4096", SQUARE(1, 4096, 64, VKATTN_F32, .flags = 0)},
    {"causal-f32-d64-t4096", SQUARE(1, 4096, 64, VKATTN_F32, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"square-f32-d128-t4096", SQUARE(1, 4096, 128, VKATTN_F32, .flags = 0)},
    {"causal-f32-d128-t4096", SQUARE(1, 4096, 128, VKATTN_F32, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT)},
    {"decode-f16-d128-t4096",
     {.heads = 32,
      .kv_heads = 8,
      .len_q = 1,
      .len_kv = 4096,
      .dim_qk = 128,
      .q_type = VKATTN_F16,
      .kv_type = VKATTN_F16,
      .o_type = VKATTN_F16}},
    {"decode-f16-d128-heads8",
     {.heads = 32,
      .kv_heads = 4,
      .len_q = 1,
      .len_kv = 4096,
      .dim_qk = 128,
      .q_type = VKATTN_F16,
      .kv_type = VKATTN_F16,
      .o_type = VKATTN_F16}},
};

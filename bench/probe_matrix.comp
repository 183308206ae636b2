#version 450
// As probe.comp, with cooperative matrices of f16 and f32 sums: 4 independent accumulators per subgroup, 256 steps;
// workgroups of one subgroup. FLOPs = workgroups * 256 * 4 * 2 M N K. Bindings as in probe.comp; the sink holds a matrix of
// each workgroup.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define VKATTN_GLSL 1
#include "shared/params.h"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_MATRIX_M) const uint M = 16;
layout(constant_id = VKA_ID_MATRIX_N) const uint N = 16;
layout(constant_id = VKA_ID_MATRIX_K) const uint K = 16;
layout(binding = 0) buffer Seed { uvec4 seed[]; }; // halves: M rows of K, K rows of N
layout(binding = 3) buffer Sink { float sink[]; };

#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define OPERAND_A coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define OPERAND_B coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

void main()
{
    // Of values that differ: a compiler that sees equal rows computes one of them.
    OPERAND_A a;
    OPERAND_B b;
    coopMatLoad(a, seed, 0, K / 8, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, seed, M * K / 8, N / 8, gl_CooperativeMatrixLayoutRowMajor);
    const float s = unpackHalf2x16(seed[0].x).x;
    // One declaration each: glslang 13 gives the second of a list another type.
    ACCUMULATOR x = ACCUMULATOR(s);
    ACCUMULATOR y = ACCUMULATOR(2 * s);
    ACCUMULATOR z = ACCUMULATOR(3 * s);
    ACCUMULATOR w = ACCUMULATOR(4 * s);
    for (int k = 0; k < 256; k++) {
        x = coopMatMulAdd(a, b, x);
        y = coopMatMulAdd(a, b, y);
        z = coopMatMulAdd(a, b, z);
        w = coopMatMulAdd(a, b, w);
    }
    coopMatStore(x + y + z + w, sink, gl_WorkGroupID.x * M * N, N, gl_CooperativeMatrixLayoutRowMajor);
}

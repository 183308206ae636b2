#version 450
// What cmake/spirv.cmake compiles to find out whether a glslang knows cooperative matrices.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 32) in;
shared uvec4 words[32];

void main()
{
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopMatLoad(a, words, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatStore(a, words, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
}

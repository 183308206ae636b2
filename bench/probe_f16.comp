#version 450
// As probe.comp, with pairs of halves: 8 independent chains of f16vec2 per lane, 4,096 steps, workgroups of 64. A device
// with packed arithmetic does two multiply-adds an instruction.
// FLOPs = workgroups * 64 * 4096 * 16 * 2. Bindings as in probe.comp.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 64) in;
layout(binding = 0) buffer Seed { vec4 seed[]; };
layout(binding = 3) buffer Sink { vec4 sink[]; };

void main()
{
    f16vec2 s = f16vec2(seed[0].xy * 1e-3);
    f16vec2 y = f16vec2(0.999);
    f16vec2 x[8];
    for (int i = 0; i < 8; i++) x[i] = f16vec2(float(gl_LocalInvocationID.x) + i) * s;
    for (int k = 0; k < 4096; k++) {
        x[0] = fma(x[0], y, s);
        x[1] = fma(x[1], y, s);
        x[2] = fma(x[2], y, s);
        x[3] = fma(x[3], y, s);
        x[4] = fma(x[4], y, s);
        x[5] = fma(x[5], y, s);
        x[6] = fma(x[6], y, s);
        x[7] = fma(x[7], y, s);
    }
    sink[gl_GlobalInvocationID.x] = vec4(x[0] + x[1] + x[2] + x[3], x[4] + x[5] + x[6] + x[7]);
}

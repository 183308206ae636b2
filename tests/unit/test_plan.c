/* Planning on pretended devices: which kernel whom gets, refusals, workspaces, parameter blocks, counted work. */
#include "plan.h"

#include "tuning.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- Devices --------------------------------------------------------------------------------------------------- */

enum device { NVIDIA, AMD, RDNA3, INTEL, XE2, MALI, APPLE, LLVMPIPE, SWIFTSHADER, MINIMUM, DEVICES };

/* As the drivers report them: NVIDIA 580 on Ampere, RADV on RDNA2 and RDNA3, ANV on Xe and Xe2, Mali-G715, MoltenVK on
 * M1, Mesa 26. */
static const struct {
    const char *name;
    struct caps caps;
} devices[DEVICES] = {
    [NVIDIA] = {"NVIDIA",
                {.device_class = CLASS_NVIDIA,
                 .subgroup_size = 32,
                 .subgroup_size_min = 32,
                 .subgroup_size_max = 32,
                 .subgroup_size_control = true,
                 .shuffles = true,
                 .fill_groups = 512,
                 .addresses = true,
                 .descriptors = true,
                 .float_controls = true,
                 .max_invocations = 1024,
                 .shared_bytes = 49152,
                 .max_groups_x = 2147483647,
                 .max_groups_y = 65535,
                 .max_range = 4294967295,
                 .offset_alignment = 16,
                 .matrix_count = 3,
                 .matrices = {{16, 8, 16}, {16, 8, 8}, {16, 16, 16}}}},
    [AMD] = {"AMD RDNA",
             {.device_class = CLASS_AMD,
              .subgroup_size = 64,
              .subgroup_size_min = 32,
              .subgroup_size_max = 64,
              .subgroup_size_control = true,
              .shuffles = true,
              .fill_groups = 512,
              .addresses = true,
              .descriptors = true,
              .float_controls = true,
              .max_invocations = 1024,
              .shared_bytes = 65536,
              .max_groups_x = 4294967295,
              .max_groups_y = 65535,
              .max_range = 4294967295,
              .offset_alignment = 4}},
    [RDNA3] = {"AMD RDNA3",
               {.device_class = CLASS_AMD,
                .subgroup_size = 64,
                .subgroup_size_min = 32,
                .subgroup_size_max = 64,
                .subgroup_size_control = true,
                .shuffles = true,
                .fill_groups = 512,
                .addresses = true,
                .descriptors = true,
                .float_controls = true,
                .max_invocations = 1024,
                .shared_bytes = 65536,
                .max_groups_x = 4294967295,
                .max_groups_y = 65535,
                .max_range = 4294967295,
                .offset_alignment = 4,
                .matrix_count = 1,
                .matrices = {{16, 16, 16}}}},
    [INTEL] = {"Intel",
               {.device_class = CLASS_INTEL,
                .subgroup_size = 32,
                .subgroup_size_min = 8,
                .subgroup_size_max = 32,
                .subgroup_size_control = true,
                .shuffles = true,
                .fill_groups = 256,
                .addresses = true,
                .descriptors = true,
                .float_controls = true,
                .max_invocations = 1024,
                .shared_bytes = 65536,
                .max_groups_x = 65535,
                .max_groups_y = 65535,
                .max_range = 1073741824,
                .offset_alignment = 4}},
    [XE2] = {"Intel Xe2",
             {.device_class = CLASS_INTEL,
              .subgroup_size = 32,
              .subgroup_size_min = 16,
              .subgroup_size_max = 32,
              .subgroup_size_control = true,
              .shuffles = true,
              .fill_groups = 256,
              .addresses = true,
              .descriptors = true,
              .float_controls = true,
              .max_invocations = 1024,
              .shared_bytes = 65536,
              .max_groups_x = 65535,
              .max_groups_y = 65535,
              .max_range = 1073741824,
              .offset_alignment = 4,
              .matrix_count = 1,
              .matrices = {{8, 16, 16}}}},
    [MALI] = {"Mali",
              {.device_class = CLASS_MALI,
               .subgroup_size = 16,
               .subgroup_size_min = 16,
               .subgroup_size_max = 16,
               .shuffles = true,
               .fill_groups = 64,
               .addresses = true,
               .descriptors = true,
               .max_invocations = 1024,
               .shared_bytes = 32768,
               .max_groups_x = 65535,
               .max_groups_y = 65535,
               .max_range = 4294967295,
               .offset_alignment = 16}},
    [APPLE] = {"Apple",
               {.device_class = CLASS_APPLE,
                .subgroup_size = 32,
                .subgroup_size_min = 32,
                .subgroup_size_max = 32,
                .shuffles = true,
                .fill_groups = 256,
                .addresses = true,
                .descriptors = true,
                .max_invocations = 1024,
                .shared_bytes = 32768,
                .max_groups_x = 1073741824,
                .max_groups_y = 1073741824,
                .max_range = 4294967295,
                .offset_alignment = 16}},
    [LLVMPIPE] = {"llvmpipe",
                  {.device_class = CLASS_CPU,
                   .subgroup_size = 8,
                   .subgroup_size_min = 8,
                   .subgroup_size_max = 8,
                   .subgroup_size_control = true,
                   .shuffles = true,
                   .fill_groups = 32,
                   .addresses = true,
                   .descriptors = true,
                   .float_controls = true,
                   .max_invocations = 1024,
                   .shared_bytes = 32768,
                   .max_groups_x = 65535,
                   .max_groups_y = 65535,
                   .max_range = 134217728,
                   .offset_alignment = 16,
                   .matrix_count = 1,
                   .matrices = {{8, 8, 8}}}},
    [SWIFTSHADER] = {"SwiftShader",
                     {.device_class = CLASS_CPU,
                      .subgroup_size = 4,
                      .subgroup_size_min = 4,
                      .subgroup_size_max = 4,
                      .subgroup_size_control = true,
                      .shuffles = true,
                      .fill_groups = 32,
                      .addresses = true,
                      .float_controls = true,
                      .max_invocations = 256,
                      .shared_bytes = 32768,
                      .max_groups_x = 65535,
                      .max_groups_y = 65535,
                      .max_range = 1073741824,
                      .offset_alignment = 256}},
    [MINIMUM] = {"the minimum",
                 {.device_class = CLASS_UNKNOWN,
                  .fill_groups = 512,
                  .descriptors = true,
                  .max_invocations = 128,
                  .shared_bytes = 16384,
                  .max_groups_x = 65535,
                  .max_groups_y = 65535,
                  .max_range = 134217728,
                  .offset_alignment = 256}},
};

/* ---- Problems -------------------------------------------------------------------------------------------------- */

enum shape { PREFILL, CAUSAL, HALF, HALF_128, WIDE, ODD, WIDEST, DECODE, MASKED, WEIGHTS, NO_KEYS, SHAPES };

static const struct {
    const char *name;
    vkattn_problem problem;
} shapes[SHAPES] = {
    [PREFILL] = {"f32 d=64", {.heads = 8, .len_q = 1024, .len_kv = 1024, .dim_qk = 64}},
    [CAUSAL] =
        {"f32 d=64 causal",
         {.heads = 8, .len_q = 1024, .len_kv = 1024, .dim_qk = 64, .flags = VKATTN_CAUSAL, .align = VKATTN_TOP_LEFT}},
    [HALF] = {"f16 d=64",
              {.heads = 8,
               .len_q = 1024,
               .len_kv = 1024,
               .dim_qk = 64,
               .q_type = VKATTN_F16,
               .kv_type = VKATTN_F16,
               .o_type = VKATTN_F16}},
    [HALF_128] = {"f16 d=128",
                  {.heads = 8,
                   .kv_heads = 2,
                   .len_q = 1024,
                   .len_kv = 1024,
                   .dim_qk = 128,
                   .q_type = VKATTN_F16,
                   .kv_type = VKATTN_F16,
                   .o_type = VKATTN_F16}},
    [WIDE] = {"f32 d=256", {.heads = 8, .len_q = 512, .len_kv = 512, .dim_qk = 256}},
    [ODD] = {"bf16 d=65 dv=33",
             {.heads = 3, .len_q = 77, .len_kv = 99, .dim_qk = 65, .dim_v = 33, .kv_type = VKATTN_BF16}},
    [WIDEST] = {"f32 d=576 dv=512", {.heads = 2, .len_q = 64, .len_kv = 64, .dim_qk = 576, .dim_v = 512}},
    [DECODE] = {"decode d=128",
                {.heads = 32, .kv_heads = 8, .len_q = 1, .len_kv = 4096, .dim_qk = 128, .kv_type = VKATTN_F16}},
    [MASKED] = {"byte mask",
                {.heads = 8,
                 .len_q = 256,
                 .len_kv = 256,
                 .dim_qk = 64,
                 .mask_kind = VKATTN_MASK_BYTES,
                 .mask_true = VKATTN_TRUE_ATTENDS}},
    [WEIGHTS] = {"weights", {.heads = 8, .len_q = 128, .len_kv = 128, .dim_qk = 64, .flags = VKATTN_WRITE_WEIGHTS}},
    [NO_KEYS] = {"no keys", {.heads = 8, .len_q = 128, .dim_qk = 64}},
};

static struct problem canonical(const vkattn_problem *in)
{
    struct problem out;
    cr_assert(vkattn_problem_canonical(in, sizeof *in, &out) == VKATTN_OK, "%s", vkattn_last_error());
    return out;
}

static const struct kernel *kernel_named(const char *name)
{
    for (uint32_t i = 0; i < vkattn_kernel_count; i++)
        if (strcmp(vkattn_kernels[i]->name, name) == 0)
            return vkattn_kernels[i];
    cr_assert_fail("the catalogue has no %s", name);
    return NULL;
}

static vkattn_status choose_with(const vkattn_problem *in, const struct caps *caps, vkattn_options options,
                                 struct plan *plan, vkattn_report *report)
{
    const struct problem p = canonical(in);
    vkattn_error_set(VKATTN_OK, "");
    return vkattn_plan_choose(&p, caps, &options, plan, report);
}

static struct plan choose(const vkattn_problem *in, const struct caps *caps, vkattn_report *report)
{
    struct plan plan;
    const vkattn_status status = choose_with(in, caps, (vkattn_options){0}, &plan, report);
    cr_assert(status == VKATTN_OK, "%s: %s", vkattn_status_name(status), vkattn_last_error());
    return plan;
}

/* ---- Who gets what --------------------------------------------------------------------------------------------- */

static const struct {
    enum device device;
    enum shape shape;
    const char *kernel;
} expectations[] = {
    /* clang-format off */
    {NVIDIA, PREFILL, "fwd_tile"},
    {NVIDIA, CAUSAL, "fwd_tile"},
    {NVIDIA, HALF, "fwd_coopmat"},
    {NVIDIA, HALF_128, "fwd_coopmat"},
    {NVIDIA, WIDE, "fwd_tile"},
    {NVIDIA, ODD, "fwd_tile"},
    {NVIDIA, MASKED, "fwd_tile"},
    {NVIDIA, WEIGHTS, "fwd_tile"},
    {NVIDIA, WIDEST, "fwd_tile"},
    {NVIDIA, DECODE, "fwd_decode"},
    {AMD, PREFILL, "fwd_tile"},
    {AMD, CAUSAL, "fwd_tile"},
    {AMD, HALF, "fwd_tile"},
    {AMD, HALF_128, "fwd_tile"},
    {AMD, WIDE, "fwd_tile"},
    {AMD, ODD, "fwd_tile"},
    {AMD, MASKED, "fwd_tile"},
    {AMD, WEIGHTS, "fwd_tile"},
    {AMD, WIDEST, "fwd_tile"},
    {AMD, DECODE, "fwd_decode"},
    {RDNA3, PREFILL, "fwd_tile"},
    {RDNA3, HALF, "fwd_coopmat"},
    {RDNA3, HALF_128, "fwd_coopmat"},
    {RDNA3, ODD, "fwd_tile"},
    {RDNA3, DECODE, "fwd_decode"},
    {XE2, PREFILL, "fwd_tile"},
    {XE2, HALF, "fwd_coopmat"},
    {XE2, HALF_128, "fwd_coopmat"},
    {INTEL, PREFILL, "fwd_tile"},
    {INTEL, CAUSAL, "fwd_tile"},
    {INTEL, HALF, "fwd_tile"},
    {INTEL, HALF_128, "fwd_tile"},
    {INTEL, WIDE, "fwd_tile"},
    {INTEL, ODD, "fwd_tile"},
    {INTEL, MASKED, "fwd_tile"},
    {INTEL, WEIGHTS, "fwd_tile"},
    {INTEL, WIDEST, "fwd_decode"},
    {INTEL, DECODE, "fwd_decode"},
    {MALI, PREFILL, "fwd_tile"},
    {MALI, CAUSAL, "fwd_tile"},
    {MALI, HALF, "fwd_tile"},
    {MALI, HALF_128, "fwd_tile"},
    {MALI, WIDE, "fwd_tile"},
    {MALI, ODD, "fwd_tile"},
    {MALI, MASKED, "fwd_tile"},
    {MALI, WEIGHTS, "fwd_tile"},
    {MALI, WIDEST, "fwd_rows"},
    {MALI, DECODE, "fwd_rows"},
    {APPLE, PREFILL, "fwd_tile"},
    {APPLE, CAUSAL, "fwd_tile"},
    {APPLE, HALF, "fwd_tile"},
    {APPLE, HALF_128, "fwd_tile"},
    {APPLE, WIDE, "fwd_tile"},
    {APPLE, ODD, "fwd_tile"},
    {APPLE, MASKED, "fwd_tile"},
    {APPLE, WEIGHTS, "fwd_tile"},
    {APPLE, WIDEST, "fwd_rows"},
    {APPLE, DECODE, "fwd_rows"},
    {LLVMPIPE, PREFILL, "fwd_tile"},
    {LLVMPIPE, CAUSAL, "fwd_tile"},
    {LLVMPIPE, HALF, "fwd_tile"},
    {LLVMPIPE, HALF_128, "fwd_tile"},
    {LLVMPIPE, WIDE, "fwd_tile"},
    {LLVMPIPE, ODD, "fwd_tile"},
    {LLVMPIPE, MASKED, "fwd_tile"},
    {LLVMPIPE, WEIGHTS, "fwd_tile"},
    {LLVMPIPE, WIDEST, "fwd_tile"},
    {LLVMPIPE, DECODE, "fwd_decode"},
    {SWIFTSHADER, PREFILL, "fwd_tile"},
    {SWIFTSHADER, CAUSAL, "fwd_tile"},
    {SWIFTSHADER, HALF, "fwd_tile"},
    {SWIFTSHADER, HALF_128, "fwd_tile"},
    {SWIFTSHADER, WIDE, "fwd_tile"},
    {SWIFTSHADER, ODD, "fwd_tile"},
    {SWIFTSHADER, MASKED, "fwd_tile"},
    {SWIFTSHADER, WEIGHTS, "fwd_tile"},
    {SWIFTSHADER, WIDEST, "fwd_tile"},
    {SWIFTSHADER, DECODE, "fwd_rows"},
    {MINIMUM, PREFILL, "fwd_tile"},
    {MINIMUM, CAUSAL, "fwd_tile"},
    {MINIMUM, HALF, "fwd_tile"},
    {MINIMUM, HALF_128, "fwd_tile"},
    {MINIMUM, WIDE, "fwd_tile"},
    {MINIMUM, ODD, "fwd_tile"},
    {MINIMUM, MASKED, "fwd_tile"},
    {MINIMUM, WEIGHTS, "fwd_tile"},
    {MINIMUM, WIDEST, "fwd_rows"},
    {MINIMUM, DECODE, "fwd_rows"},
    /* clang-format on */
};

/* A build whose glslang is too old has no matrix units on any device. */
static const char *expected(const char *kernel)
{
    return kernel_named(kernel)->spirv->missing ? "fwd_tile" : kernel;
}

Test(plan, each_device_gets_the_expected_kernel)
{
    for (size_t i = 0; i < COUNT(expectations); i++) {
        const struct caps *caps = &devices[expectations[i].device].caps;
        const struct plan plan = choose(&shapes[expectations[i].shape].problem, caps, NULL);
        cr_expect_str_eq(vkattn_forward_step(&plan)->kernel->name, expected(expectations[i].kernel), "%s, %s: %s",
                         devices[expectations[i].device].name, shapes[expectations[i].shape].name,
                         vkattn_forward_step(&plan)->kernel->name);
    }
}

static void check_step(const char *device, const char *shape, const struct step *step, const struct caps *caps)
{
    const uint32_t invocations = step->constants[VKA_ID_WORKGROUP];
    cr_expect(invocations > 0 && invocations <= caps->max_invocations, "%s, %s: %u invocations", device, shape,
              invocations);
    cr_expect(step->group_rows > 0, "%s, %s", device, shape);
    const uint32_t asked = step->constants[VKA_ID_SUBGROUP];
    if (asked != 0 && asked != VKA_FROM_PARAMS)
        cr_expect(caps->subgroup_size_control && asked >= caps->subgroup_size_min && asked <= caps->subgroup_size_max,
                  "%s, %s asks for subgroups of %u", device, shape, asked);
}

static void check_report(const char *device, const char *shape, const struct plan *plan, const vkattn_report *report)
{
    cr_expect(report->chosen >= 0 && (uint32_t)report->chosen < report->candidate_count, "%s, %s", device, shape);
    const vkattn_candidate *chosen = &report->candidates[report->chosen];
    const struct step *forward = vkattn_forward_step(plan);
    cr_expect_str_eq(chosen->kernel, forward->kernel->name);
    cr_expect(&forward->kernel->tiles[chosen->tile - 1] == forward->tile, "%s, %s", device, shape);
    cr_expect(report->step_count == plan->step_count && report->workspace_size == plan->workspace_size);
    cr_expect(report->tile[0] != '\0' && report->tile[sizeof report->tile - 2] == '\0', "%s is cut", report->tile);
    for (uint32_t i = 0; i < report->candidate_count; i++) {
        const vkattn_candidate *c = &report->candidates[i];
        cr_expect((c->tile == 0) == (c->reason[0] != '\0'), "%s, %s: %s is neither refused nor offered", device, shape,
                  c->kernel);
        cr_expect(c->tile == 0 || chosen->cost <= c->cost, "%s, %s: %s is cheaper", device, shape, c->kernel);
        cr_expect(c->access == (plan->addresses ? VKATTN_ACCESS_ADDRESS : VKATTN_ACCESS_DESCRIPTOR));
    }
}

enum { VARIANTS = 3 * DEVICES };

/* Each device as it is, with the minimum's invocations and shared memory, and as VKATTN_LIMIT_MINIMUM makes it. */
static struct caps caps_of(int variant)
{
    struct caps caps = devices[variant % DEVICES].caps;
    if (variant >= DEVICES) {
        caps.max_invocations = 128;
        caps.shared_bytes = 16384;
    }
    if (variant >= 2 * DEVICES) {
        caps.subgroup_size = 0;
        caps.subgroup_size_control = false;
        caps.matrix_count = 0;
    }
    return caps;
}

/* Whatever is chosen, anywhere: it fits the device, and the report agrees with the plan. */
Test(plan, every_device_runs_every_problem)
{
    for (int d = 0; d < VARIANTS; d++)
        for (int s = 0; s < SHAPES; s++) {
            vkattn_report report;
            const struct caps caps = caps_of(d);
            const struct plan plan = choose(&shapes[s].problem, &caps, &report);
            check_report(devices[d % DEVICES].name, shapes[s].name, &plan, &report);
            for (uint32_t i = 0; i < plan.step_count; i++)
                check_step(devices[d % DEVICES].name, shapes[s].name, &plan.steps[i], &caps);
        }
}

static void force(const struct kernel *kernel, uint32_t tile, int d, int s)
{
    struct plan plan;
    const struct caps caps = caps_of(d);
    const vkattn_options options = {.kernel = kernel->name, .tile = tile};
    const vkattn_status status = choose_with(&shapes[s].problem, &caps, options, &plan, NULL);
    cr_expect(status == VKATTN_OK || status == VKATTN_UNSUPPORTED, "%s", vkattn_last_error());
    if (status == VKATTN_OK)
        check_step(devices[d % DEVICES].name, shapes[s].name, vkattn_forward_step(&plan), &caps);
    else
        cr_expect(strncmp(vkattn_last_error(), kernel->name, strlen(kernel->name)) == 0 &&
                      strlen(vkattn_last_error()) > strlen(kernel->name) + 2,
                  "\"%s\" gives no reason", vkattn_last_error());
}

/* Also where a kernel is forced that would not be chosen: it refuses, or it fits. */
Test(plan, every_forced_tile_fits_or_refuses)
{
    for (int d = 0; d < VARIANTS; d++)
        for (int s = 0; s < SHAPES; s++)
            for (uint32_t k = 0; k < vkattn_kernel_count; k++)
                for (uint32_t tile = 1; tile <= vkattn_kernels[k]->tile_count; tile++)
                    if (vkattn_kernels[k]->role == ROLE_FORWARD)
                        force(vkattn_kernels[k], tile, d, s);
}

/* ---- Matrix units ---------------------------------------------------------------------------------------------- */

static const vkattn_problem half = {.heads = 8,
                                    .len_q = 1024,
                                    .len_kv = 1024,
                                    .dim_qk = 64,
                                    .q_type = VKATTN_F16,
                                    .kv_type = VKATTN_F16,
                                    .o_type = VKATTN_F16};

static void skip_without_matrices(void)
{
    if (kernel_named("fwd_coopmat")->spirv->missing)
        cr_skip_test("not in this build: %s", kernel_named("fwd_coopmat")->spirv->missing);
}

/* What fwd_coopmat says to a problem on a device; "" where it takes it. */
static const char *said(const vkattn_problem *problem, const struct caps *caps)
{
    struct plan plan;
    const vkattn_options options = {.kernel = "fwd_coopmat"};
    return choose_with(problem, caps, options, &plan, NULL) == VKATTN_OK ? "" : vkattn_last_error();
}

static void expect_said(const vkattn_problem *problem, const struct caps *caps, const char *part)
{
    const char *text = said(problem, caps);
    cr_expect(strstr(text, part) != NULL, "\"%s\" does not say \"%s\"", text, part);
}

Test(plan, matrix_units_refuse_with_reasons)
{
    skip_without_matrices();
    const struct caps *rdna3 = &devices[RDNA3].caps;
    struct caps caps = *rdna3;
    vkattn_problem p = half;
    cr_expect_str_eq(said(&p, rdna3), "");
    p.o_type = VKATTN_F32;
    cr_expect_str_eq(said(&p, rdna3), "");
    p.kv_type = VKATTN_F32;
    expect_said(&p, rdna3, "would lose range");
    p.kv_type = VKATTN_BF16;
    expect_said(&p, rdna3, "one type");
    p.q_type = VKATTN_BF16;
    expect_said(&p, rdna3, "bf16");
    p = half;
    expect_said(&p, &devices[AMD].caps, "no cooperative matrices");
    p.dim_qk = 300;
    expect_said(&p, rdna3, "head width");
    p = half;
    p.len_kv = 1 << 20;
    expect_said(&p, rdna3, "drift");
    caps.matrix_off[0] = "the self-test found wrong results";
    expect_said(&half, &caps, "matrices of 16x16x16 are off: the self-test");
    caps.matrices_off = "this driver is at fault";
    expect_said(&half, &caps, "cooperative matrices are off: this driver");
    caps = *rdna3;
    caps.matrices[0] = (struct matrix){32, 32, 16};
    expect_said(&half, &caps, "no matrices of");
    caps = *rdna3;
    caps.subgroup_size_control = false;
    caps.subgroup_size_min = caps.subgroup_size_max = 64;
    expect_said(&half, &caps, "subgroup");
    caps = *rdna3;
    caps.shared_bytes = 16384;
    caps.max_invocations = 64;
    expect_said(&half, &caps, "the device allows");
}

/* Each shape that a device may enumerate has a tile, on devices that nobody measured. */
Test(plan, every_matrix_shape_has_a_tile)
{
    skip_without_matrices();
    static const struct matrix shapes_of_matrices[] = {{16, 16, 16}, {8, 16, 16}, {16, 8, 16}, {16, 8, 8},
                                                       {8, 8, 16},   {16, 16, 8}, {8, 8, 8}};
    for (size_t i = 0; i < COUNT(shapes_of_matrices); i++)
        for (uint32_t subgroup = 8; subgroup <= 32; subgroup *= 2) {
            struct caps caps = devices[XE2].caps;
            caps.device_class = CLASS_UNKNOWN;
            caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = subgroup;
            caps.matrices[0] = shapes_of_matrices[i];
            cr_expect_str_eq(said(&half, &caps), "", "%ux%ux%u, subgroups of %u", caps.matrices[0].m,
                             caps.matrices[0].n, caps.matrices[0].k, subgroup);
        }
}

/* Rows that start in mid-word are read by the kernel itself where the plan knows of them. */
Test(plan, matrix_units_read_shifted_rows)
{
    skip_without_matrices();
    struct plan plan;
    vkattn_options options = {.kernel = "fwd_coopmat"};
    cr_assert(choose_with(&half, &devices[RDNA3].caps, options, &plan, NULL) == VKATTN_OK);
    cr_expect(plan.needs_words && plan.mid_word.kernel != NULL);
    options.mid_word_starts = 1;
    cr_assert(choose_with(&half, &devices[RDNA3].caps, options, &plan, NULL) == VKATTN_OK);
    cr_expect(!plan.needs_words && plan.mid_word.kernel == NULL);
}

Test(plan, addresses_are_preferred_where_there_are_any)
{
    for (int d = 0; d < DEVICES; d++) {
        const struct plan plan = choose(&shapes[PREFILL].problem, &devices[d].caps, NULL);
        cr_expect(plan.addresses == devices[d].caps.addresses, "%s", devices[d].name);
    }
}

Test(plan, is_a_pure_function)
{
    for (int d = 0; d < DEVICES; d++)
        for (int s = 0; s < SHAPES; s++) {
            struct plan plans[2];
            vkattn_report reports[2];
            const struct problem p = canonical(&shapes[s].problem);
            for (int i = 0; i < 2; i++) {
                memset(&plans[i], 0x11 * (i + 1), sizeof *plans);
                memset(&reports[i], 0x11 * (i + 1), sizeof *reports);
                cr_assert(vkattn_plan_choose(&p, &devices[d].caps, NULL, &plans[i], &reports[i]) == VKATTN_OK);
            }
            cr_expect(memcmp(&plans[0], &plans[1], sizeof *plans) == 0, "%s, %s", devices[d].name, shapes[s].name);
            cr_expect(memcmp(&reports[0], &reports[1], sizeof *reports) == 0, "%s, %s", devices[d].name,
                      shapes[s].name);
        }
}

/* ---- Tuning ---------------------------------------------------------------------------------------------------- */

static uint32_t number_of(const char *kernel)
{
    uint32_t i = 0;
    while (vkattn_kernels[i] != kernel_named(kernel))
        i++;
    cr_assert(i < TUNING_KERNELS);
    return i;
}

/* Who gets what once measurements say that a kernel takes so many thousandths of what its cost says. */
static const struct {
    enum device device;
    enum shape shape;
    const char *tuned;
    uint32_t scale;
    const char *kernel;
} tuned_expectations[] = {
    /* clang-format off */
    {NVIDIA, PREFILL, "fwd_tile", 100000, "fwd_decode"},
    {NVIDIA, DECODE, "fwd_decode", 100000, "fwd_rows"},
    {NVIDIA, DECODE, "fwd_decode", 1100, "fwd_decode"},
    {NVIDIA, DECODE, "fwd_tile", 10, "fwd_tile"},
    {AMD, DECODE, "fwd_decode", 100000, "fwd_rows"},
    {AMD, HALF_128, "fwd_tile", 100000, "fwd_decode"},
    {INTEL, PREFILL, "fwd_tile", 100000, "fwd_decode"},
    {INTEL, WIDEST, "fwd_decode", 100000, "fwd_rows"},
    {MALI, DECODE, "fwd_tile", 10, "fwd_tile"},
    {MALI, PREFILL, "fwd_decode", 10, "fwd_tile"}, /* which it refuses */
    {APPLE, PREFILL, "fwd_tile", 100000, "fwd_rows"},
    {LLVMPIPE, PREFILL, "fwd_tile", 100000, "fwd_decode"},
    {LLVMPIPE, DECODE, "fwd_decode", 100000, "fwd_rows"},
    {SWIFTSHADER, DECODE, "fwd_decode", 10, "fwd_decode"},
    {MINIMUM, PREFILL, "fwd_tile", 100000, "fwd_rows"},
    {MINIMUM, PREFILL, "fwd_rows", 10, "fwd_rows"},
    /* clang-format on */
};

Test(plan, a_tuned_cost_changes_who_gets_what)
{
    for (size_t i = 0; i < COUNT(tuned_expectations); i++) {
        struct tuning tuning = {0};
        struct caps caps = devices[tuned_expectations[i].device].caps;
        const uint32_t number = number_of(tuned_expectations[i].tuned);
        tuning.scales[number][0] = tuning.scales[number][1] = tuned_expectations[i].scale;
        caps.tuning = &tuning;
        const struct plan plan = choose(&shapes[tuned_expectations[i].shape].problem, &caps, NULL);
        cr_expect_str_eq(vkattn_forward_step(&plan)->kernel->name, tuned_expectations[i].kernel, "%s, %s, %s: %s",
                         devices[tuned_expectations[i].device].name, shapes[tuned_expectations[i].shape].name,
                         tuned_expectations[i].tuned, vkattn_forward_step(&plan)->kernel->name);
    }
}

static void prefer_everywhere(struct tuning *tuning, uint32_t kernel, uint32_t row)
{
    for (int access = 0; access < 2; access++)
        for (int type = 0; type < TUNING_TYPES; type++)
            for (int width = 0; width < TUNING_WIDTHS; width++)
                tuning->tiles[kernel][access][type][width] = row;
}

/* Whatever row a tuning prefers, on whatever device: what is planned fits. */
Test(plan, every_tuned_row_fits_or_is_passed_over)
{
    for (uint32_t k = 0; k < vkattn_kernel_count; k++)
        for (uint32_t row = 1; vkattn_kernels[k]->role == ROLE_FORWARD && row <= vkattn_kernels[k]->tile_count; row++) {
            struct tuning tuning = {0};
            prefer_everywhere(&tuning, k, row);
            for (int d = 0; d < VARIANTS; d++)
                for (int s = 0; s < SHAPES; s++) {
                    vkattn_report report;
                    struct caps caps = caps_of(d);
                    caps.tuning = &tuning;
                    const struct plan plan = choose(&shapes[s].problem, &caps, &report);
                    const vkattn_problem *p = &shapes[s].problem;
                    check_report(devices[d % DEVICES].name, shapes[s].name, &plan, &report);
                    check_step(devices[d % DEVICES].name, shapes[s].name, vkattn_forward_step(&plan), &caps);
                    cr_expect(vkattn_forward_step(&plan)->tile->max_dim >=
                              (p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v));
                }
        }
}

/* ---- Refusals and options -------------------------------------------------------------------------------------- */

static void expect_refusal(const vkattn_problem *in, const struct caps *caps, vkattn_options options,
                           vkattn_status expected, const char *part)
{
    struct plan plan;
    vkattn_report report;
    const vkattn_status status = choose_with(in, caps, options, &plan, &report);
    cr_expect(status == expected, "%s instead of %s: %s", vkattn_status_name(status), vkattn_status_name(expected),
              vkattn_last_error());
    cr_expect(strstr(vkattn_last_error(), part), "\"%s\" does not say \"%s\"", vkattn_last_error(), part);
    cr_expect(report.chosen == -1);
    if (expected == VKATTN_UNSUPPORTED)
        for (uint32_t i = 0; i < report.candidate_count; i++)
            cr_expect(report.candidates[i].reason[0] != '\0' || options.kernel, "%s", report.candidates[i].kernel);
}

Test(plan, an_access_that_is_not_enabled_is_refused)
{
    const vkattn_problem *p = &shapes[PREFILL].problem;
    expect_refusal(p, &devices[MINIMUM].caps, (vkattn_options){.access = VKATTN_ACCESS_ADDRESS}, VKATTN_UNSUPPORTED,
                   "buffer device addresses");
    expect_refusal(p, &devices[SWIFTSHADER].caps, (vkattn_options){.access = VKATTN_ACCESS_DESCRIPTOR},
                   VKATTN_UNSUPPORTED, "push descriptors");
    /* A driver's fault is named as such. */
    struct caps faulty = devices[LLVMPIPE].caps;
    faulty.addresses = false;
    faulty.addresses_off = "the driver crashes";
    expect_refusal(p, &faulty, (vkattn_options){.access = VKATTN_ACCESS_ADDRESS}, VKATTN_UNSUPPORTED,
                   "buffer device addresses are off: the driver crashes");
    struct caps neither = devices[MINIMUM].caps;
    neither.descriptors = false;
    expect_refusal(p, &neither, (vkattn_options){0}, VKATTN_UNSUPPORTED, "push descriptors");
}

/* Wide heads compile for a minute there: only what fwd_rows has too many loop rounds for is left to fwd_tile. */
Test(plan, an_old_cpu_driver_tiles_wide_heads_where_it_must)
{
    struct caps old = devices[LLVMPIPE].caps;
    old.device_class = CLASS_CPU_OLD;
    old.max_loop_rounds = 65535;
    old.matrix_count = 0;
    const struct {
        uint32_t dim, len_kv;
        const char *kernel;
    } expected[] = {{64, 2048, "fwd_tile"}, {256, 2048, "fwd_tile"}, {512, 2048, "fwd_rows"}, {512, 8192, "fwd_tile"}};
    for (size_t i = 0; i < COUNT(expected); i++) {
        const vkattn_problem p = {.heads = 8, .len_q = 128, .len_kv = expected[i].len_kv, .dim_qk = expected[i].dim};
        vkattn_report report;
        choose(&p, &old, &report);
        cr_expect_str_eq(report.candidates[report.chosen].kernel, expected[i].kernel, "d = %u, %u keys", p.dim_qk,
                         p.len_kv);
    }
}

Test(plan, an_access_can_be_forced)
{
    const vkattn_access accesses[] = {VKATTN_ACCESS_ADDRESS, VKATTN_ACCESS_DESCRIPTOR};
    for (size_t i = 0; i < COUNT(accesses); i++) {
        struct plan plan;
        const vkattn_options options = {.access = accesses[i]};
        cr_assert(choose_with(&shapes[PREFILL].problem, &devices[AMD].caps, options, &plan, NULL) == VKATTN_OK);
        cr_expect(plan.addresses == (accesses[i] == VKATTN_ACCESS_ADDRESS));
    }
}

Test(plan, a_tensor_beyond_a_descriptors_range_is_named)
{
    const vkattn_options forced = {.access = VKATTN_ACCESS_DESCRIPTOR};
    /* 128 MiB of f32 at d = 64 are 524,288 rows. */
    vkattn_problem p = {.len_q = 1, .len_kv = 524288, .dim_qk = 64};
    struct plan plan;
    cr_expect(choose_with(&p, &devices[LLVMPIPE].caps, forced, &plan, NULL) == VKATTN_OK, "%s", vkattn_last_error());
    p.len_kv++;
    expect_refusal(&p, &devices[LLVMPIPE].caps, forced, VKATTN_UNSUPPORTED, "k spans 134217984 bytes");
    expect_refusal(&p, &devices[LLVMPIPE].caps, forced, VKATTN_UNSUPPORTED, "134217728 (maxStorageBufferRange)");
    expect_refusal(&p, &devices[MINIMUM].caps, (vkattn_options){0}, VKATTN_UNSUPPORTED, "k spans");
    cr_expect(choose_with(&p, &devices[LLVMPIPE].caps, (vkattn_options){0}, &plan, NULL) == VKATTN_OK,
              "addresses know no range");
    vkattn_problem wide_v = {.len_q = 1, .len_kv = 524289, .dim_qk = 1, .dim_v = 64};
    expect_refusal(&wide_v, &devices[LLVMPIPE].caps, forced, VKATTN_UNSUPPORTED, "v spans");
    vkattn_problem rows = {.len_q = 524289, .len_kv = 1, .dim_qk = 64};
    expect_refusal(&rows, &devices[LLVMPIPE].caps, forced, VKATTN_UNSUPPORTED, "q spans");
    rows.dim_qk = 1, rows.dim_v = 64;
    expect_refusal(&rows, &devices[LLVMPIPE].caps, forced, VKATTN_UNSUPPORTED, "o spans");
}

Test(plan, options_are_checked)
{
    const vkattn_problem *p = &shapes[PREFILL].problem;
    const struct caps *caps = &devices[LLVMPIPE].caps;
    expect_refusal(p, caps, (vkattn_options){.kernel = "fwd_magic"}, VKATTN_INVALID, "\"fwd_magic\"");
    expect_refusal(p, caps, (vkattn_options){.kernel = ""}, VKATTN_INVALID, "options.kernel");
    expect_refusal(p, caps, (vkattn_options){.kernel = "fwd_weights"}, VKATTN_INVALID, "forward");
    expect_refusal(p, caps, (vkattn_options){.tile = 1}, VKATTN_INVALID, "options.tile is 1");
    expect_refusal(p, caps, (vkattn_options){.kernel = "fwd_rows", .tile = 99}, VKATTN_INVALID, "options.tile is 99");
    expect_refusal(p, caps, (vkattn_options){.access = (vkattn_access)3}, VKATTN_INVALID, "options.access is 3");
    expect_refusal(p, caps, (vkattn_options){.access = (vkattn_access)-1}, VKATTN_INVALID, "options.access is -1");
}

Test(plan, a_forced_kernel_is_the_one)
{
    struct plan plan;
    const vkattn_options options = {.kernel = "fwd_rows", .tile = 1};
    for (int d = 0; d < DEVICES; d++) {
        cr_assert(choose_with(&shapes[PREFILL].problem, &devices[d].caps, options, &plan, NULL) == VKATTN_OK);
        cr_expect_str_eq(vkattn_forward_step(&plan)->kernel->name, "fwd_rows");
        cr_expect(vkattn_forward_step(&plan)->tile == &kernel_named("fwd_rows")->tiles[0]);
    }
}

Test(plan, max_work_is_kept)
{
    struct plan plan;
    const vkattn_options options = {.max_work = UINT64_C(1) << 40};
    cr_assert(choose_with(&shapes[PREFILL].problem, &devices[AMD].caps, options, &plan, NULL) == VKATTN_OK);
    cr_expect(plan.max_work == UINT64_C(1) << 40);
}

/* ---- Steps and workspaces -------------------------------------------------------------------------------------- */

Test(plan, a_plain_plan_needs_the_parameter_block_alone)
{
    vkattn_problem p = shapes[PREFILL].problem;
    p.len_kv = 512; /* more keys need sums of their own: fwd_tile.c, fold_keys */
    struct plan plan = choose(&p, &devices[AMD].caps, NULL);
    cr_expect(plan.step_count == 1 && plan.workspace_size == PARAMS_SIZE && plan.workspace_offset[TENSOR_LSE] == 0);
    p.flags = VKATTN_WRITE_LSE;
    plan = choose(&p, &devices[AMD].caps, NULL);
    cr_expect(plan.step_count == 1 && plan.workspace_size == PARAMS_SIZE && plan.workspace_offset[TENSOR_LSE] == 0);
    cr_expect(sizeof(vka_params) <= PARAMS_SIZE);
}

/* The LSE that the caller does not ask for lies behind the parameter block. */
static void expect_own_lse(const struct plan *plan, uint64_t rows)
{
    const vkattn_lengths whole = {plan->problem.len_q, plan->problem.len_kv};
    uint64_t bits = 0;
    cr_assert(vkattn_tensor_extent(&plan->problem, TENSOR_LSE, &whole, &bits));
    cr_expect(bits / 32 >= rows, "it holds a float for each row");
    cr_expect(plan->workspace_offset[TENSOR_LSE] >= PARAMS_SIZE && plan->workspace_offset[TENSOR_LSE] % 16 == 0);
    cr_expect(plan->workspace_size >= plan->workspace_offset[TENSOR_LSE] + bits / 8);
}

Test(plan, weights_are_a_chained_step)
{
    vkattn_problem p = shapes[WEIGHTS].problem;
    p.batch = 3;
    vkattn_report report;
    struct plan plan = choose(&p, &devices[AMD].caps, &report);
    cr_expect(plan.step_count == 2 && report.step_count == 2);
    cr_expect_str_eq(plan.steps[1].kernel->name, "fwd_weights");
    cr_expect(report.workspace_size == plan.workspace_size);
    expect_own_lse(&plan, 3 * 8 * 128);

    p.flags |= VKATTN_WRITE_LSE;
    plan = choose(&p, &devices[AMD].caps, NULL);
    cr_expect(plan.step_count == 2 && plan.workspace_offset[TENSOR_LSE] == 0 && plan.workspace_size == PARAMS_SIZE);
}

/* 230 MB of f32 copies and of sums: a descriptor of llvmpipe reaches 128 MiB. */
Test(plan, a_kernel_whose_own_tensors_do_not_fit_gives_way)
{
    const vkattn_problem copies = {
        .len_q = 1024, .len_kv = 900000, .dim_qk = 64, .q_type = VKATTN_F16, .kv_type = VKATTN_F16};
    const vkattn_problem sums = {
        .len_q = 900000, .len_kv = 1024, .dim_qk = 64, .q_type = VKATTN_F16, .o_type = VKATTN_F16};
    const char *const names[] = {"k_copy", "sums"};
    const vkattn_problem *const problems[] = {&copies, &sums};
    for (size_t i = 0; i < COUNT(names); i++) {
        const vkattn_options by_descriptor = {.access = VKATTN_ACCESS_DESCRIPTOR};
        struct problem p;
        struct plan plan;
        vkattn_report report;
        cr_assert(vkattn_problem_canonical(problems[i], sizeof *problems[i], &p) == VKATTN_OK, "%s",
                  vkattn_last_error());
        cr_assert(vkattn_plan_choose(&p, &devices[LLVMPIPE].caps, &by_descriptor, &plan, &report) == VKATTN_OK);
        cr_expect_str_neq(report.candidates[report.chosen].kernel, "fwd_tile");
        for (uint32_t n = 0; n < report.candidate_count; n++)
            if (strcmp(report.candidates[n].kernel, "fwd_tile") == 0)
                cr_expect(strstr(report.candidates[n].reason, names[i]), "%s", report.candidates[n].reason);

        const vkattn_options forced = {.access = VKATTN_ACCESS_DESCRIPTOR, .kernel = "fwd_tile"};
        cr_expect(vkattn_plan_choose(&p, &devices[LLVMPIPE].caps, &forced, &plan, &report) == VKATTN_UNSUPPORTED);
        cr_expect(report.chosen == -1 && strstr(vkattn_last_error(), names[i]) != NULL, "%s", vkattn_last_error());
    }
}

Test(plan, a_large_lse_counts_in_64_bits)
{
    const vkattn_problem p = {
        .batch = 4096, .heads = 64, .len_q = 16384, .len_kv = 1, .dim_qk = 1, .flags = VKATTN_WRITE_WEIGHTS};
    const struct plan plan = choose(&p, &devices[AMD].caps, NULL);
    expect_own_lse(&plan, UINT64_C(1) << 32);
}

Test(plan, blocks_cover_all_rows)
{
    const struct plan plan = {.parts = 1};
    const struct step step = {.kernel = kernel_named("fwd_rows"), .group_rows = 32};
    const uint32_t cases[][2] = {{0, 0}, {1, 1}, {31, 1}, {32, 1}, {33, 2}, {(1u << 29) - 1, 1u << 24}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const vkattn_lengths lengths = {.len_q = cases[i][0]};
        cr_expect(vkattn_step_blocks(&plan, &step, &lengths) == cases[i][1], "%u rows", cases[i][0]);
    }
}

/* ---- Parts of the keys ------------------------------------------------------------------------------------------ */

static struct plan decode_in(const vkattn_problem *in, enum device device, uint32_t parts)
{
    struct plan plan;
    const vkattn_options options = {.kernel = "fwd_decode", .parts = parts};
    cr_assert(choose_with(in, &devices[device].caps, options, &plan, NULL) == VKATTN_OK, "%s", vkattn_last_error());
    return plan;
}

Test(plan, keys_are_cut_to_fill_the_device)
{
    const struct {
        vkattn_problem problem;
        enum device device;
        uint32_t parts;
    } cases[] = {
        {{.heads = 32, .kv_heads = 8, .len_q = 1, .len_kv = 4096, .dim_qk = 128}, LLVMPIPE, 4},
        {{.heads = 32, .kv_heads = 8, .len_q = 1, .len_kv = 4096, .dim_qk = 128}, AMD, 17},
        {{.heads = 32, .kv_heads = 8, .len_q = 1, .len_kv = 65536, .dim_qk = 128}, AMD, 64},
        {{.batch = 8, .heads = 32, .kv_heads = 8, .len_q = 1, .len_kv = 4096, .dim_qk = 128}, LLVMPIPE, 1},
        {{.heads = 8, .kv_heads = 1, .len_q = 1, .len_kv = 300, .dim_qk = 128}, NVIDIA, 2},
        {{.heads = 8, .kv_heads = 1, .len_q = 1, .len_kv = 0, .dim_qk = 128}, NVIDIA, 1},
        {{.heads = 8, .kv_heads = 1, .len_q = 0, .len_kv = 300, .dim_qk = 128}, NVIDIA, 1},
        {{.heads = 1, .len_q = 1, .len_kv = 1u << 28, .dim_qk = 1}, NVIDIA, 512},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct plan plan = decode_in(&cases[i].problem, cases[i].device, 0);
        cr_expect(plan.parts == cases[i].parts, "case %zu: %u parts", i, plan.parts);
    }
}

Test(plan, parts_are_joined_behind)
{
    const vkattn_problem p = {.batch = 2,
                              .heads = 32,
                              .kv_heads = 8,
                              .len_q = 3,
                              .len_kv = 4096,
                              .dim_qk = 100,
                              .dim_v = 30,
                              .flags = VKATTN_WRITE_WEIGHTS};
    const struct plan plan = decode_in(&p, LLVMPIPE, 5);
    const vkattn_lengths lengths = {3, 9};
    vka_params params;
    cr_assert(plan.step_count == 3);
    cr_expect_str_eq(plan.steps[0].kernel->name, "fwd_decode");
    cr_expect_str_eq(plan.steps[1].kernel->name, "fwd_combine");
    cr_expect_str_eq(plan.steps[2].kernel->name, "fwd_weights");
    /* 12 rows in two blocks of 6, for each part of each kv head; then a group for each row. */
    cr_expect(plan.steps[0].group_rows == 6);
    cr_expect(vkattn_step_groups(&plan, &plan.steps[0], &lengths) == 2 * 8 * 2 * 5);
    cr_expect(vkattn_step_groups(&plan, &plan.steps[1], &lengths) == 2 * 32 * 3);
    cr_expect(plan.problem.tensors[TENSOR_PARTS].rows == 15 && plan.problem.tensors[TENSOR_PARTS].row_stride == 32);
    cr_expect(plan.problem.tensors[TENSOR_STATS].rows == 15 && plan.problem.tensors[TENSOR_STATS].row_stride == 4);
    cr_expect(plan.workspace_size == PARAMS_SIZE + 2 * 32 * 15 * (32 + 4) * 4 + 2 * 32 * 3 * 4);
    vkattn_plan_params(&plan, &lengths, &params);
    cr_expect(params.parts == 5 && params.len_kv == 9);
}

Test(plan, a_number_of_parts_is_checked)
{
    struct plan plan;
    const vkattn_problem *p = &shapes[DECODE].problem;
    cr_expect(choose_with(p, &devices[AMD].caps, (vkattn_options){.parts = VKATTN_MAX_PARTS}, &plan, NULL) ==
              VKATTN_OK);
    cr_expect(choose_with(p, &devices[AMD].caps, (vkattn_options){.parts = VKATTN_MAX_PARTS + 1}, &plan, NULL) ==
              VKATTN_INVALID);
    cr_expect_str_eq(vkattn_last_error(), "options.parts is 1025: must be at most 1024");
}

/* Without shuffles, or subgroups of a size that can be asked for, fwd_decode says why not. */
Test(plan, decoding_needs_shuffles)
{
    struct plan plan;
    struct caps caps = devices[AMD].caps;
    const vkattn_options options = {.kernel = "fwd_decode"};
    caps.shuffles = false;
    cr_expect(choose_with(&shapes[DECODE].problem, &caps, options, &plan, NULL) == VKATTN_UNSUPPORTED);
    cr_expect(strstr(vkattn_last_error(), "no subgroup shuffles"), "%s", vkattn_last_error());
    cr_expect(choose_with(&shapes[DECODE].problem, &devices[MALI].caps, options, &plan, NULL) == VKATTN_UNSUPPORTED);
}

/* A plan that reads words keeps a step for K or V in mid-word; one that was told of it does not need it. */
Test(plan, decoding_has_two_forms_of_16_bit_rows)
{
    struct plan plan;
    const vkattn_problem *p = &shapes[DECODE].problem;
    plan = decode_in(p, AMD, 0);
    cr_expect(plan.needs_words && plan.mid_word.kernel && plan.steps[0].constants[VKA_ID_SHIFTED] == 0);
    const vkattn_options options = {.kernel = "fwd_decode", .mid_word_starts = 1};
    cr_assert(choose_with(p, &devices[AMD].caps, options, &plan, NULL) == VKATTN_OK);
    cr_expect(!plan.needs_words && !plan.mid_word.kernel && plan.steps[0].constants[VKA_ID_SHIFTED] == 1);
    cr_expect(plan.steps[0].kernel->role == ROLE_FORWARD, "nothing is unpacked");
}

/* ---- The parameter block --------------------------------------------------------------------------------------- */

Test(plan, params_hold_the_problem)
{
    const vkattn_problem in = {.batch = 2,
                               .heads = 6,
                               .kv_heads = 3,
                               .len_q = 5,
                               .len_kv = 13,
                               .dim_qk = 8,
                               .dim_v = 4,
                               .q_type = VKATTN_F16,
                               .kv_type = VKATTN_BF16,
                               .o_type = VKATTN_F32,
                               .bias_type = VKATTN_F16,
                               .flags = VKATTN_BIAS | VKATTN_LEFT | VKATTN_RIGHT,
                               .align = VKATTN_TOP_LEFT,
                               .left = 7,
                               .right = -2,
                               .mask_kind = VKATTN_MASK_BITS,
                               .mask_true = VKATTN_TRUE_ATTENDS,
                               .scale = 0.25f,
                               .softcap = 50,
                               .k = {.order = VKATTN_STRIDED, .batch = UINT64_C(1) << 33, .head = 9, .row = 77}};
    const struct plan plan = choose(&in, &devices[AMD].caps, NULL);
    const vkattn_lengths lengths = {3, 11};
    vka_params p;
    memset(&p, 0xff, sizeof p);
    vkattn_plan_params(&plan, &lengths, &p);
    cr_expect(p.batch == 2 && p.heads == 6 && p.group == 2);
    cr_expect(p.len_q == 3 && p.len_kv == 11, "lengths are the call's");
    cr_expect(p.dim_qk == 8 && p.dim_v == 4);
    cr_expect(p.q_type == VKA_TYPE_F16 && p.kv_type == VKA_TYPE_BF16 && p.o_type == VKA_TYPE_F32);
    cr_expect(p.bias_type == VKA_TYPE_F16 && p.mask_kind == VKA_MASK_BITS);
    cr_expect(p.left == 7 && p.right == -2 && p.scale == 0.25f && p.softcap == 50);
    const vka_tensor *k = &p.tensors[VKA_K], *q = &p.tensors[VKA_Q];
    cr_expect(k->batch_stride == UINT64_C(1) << 33 && k->head_stride == 9 && k->row_stride == 77);
    cr_expect(q->batch_stride == 240 && q->head_stride == 40 && q->row_stride == 8, "strides stay the problem's");
    for (int id = 0; id < VKA_TENSORS; id++)
        cr_expect(p.tensors[id].address == 0, "addresses are record's");
}

Test(plan, codes_of_types_and_masks_are_the_public_ones)
{
    cr_expect((int)VKATTN_F32 == VKA_TYPE_F32 && (int)VKATTN_F16 == VKA_TYPE_F16 && (int)VKATTN_BF16 == VKA_TYPE_BF16);
    cr_expect((int)VKATTN_MASK_BYTES == VKA_MASK_BYTES && (int)VKATTN_MASK_BITS == VKA_MASK_BITS);
}

static void expect_features(vkattn_problem in, uint32_t expected)
{
    in.len_q = in.len_kv = in.dim_qk = 4;
    const struct problem p = canonical(&in);
    cr_expect(vkattn_features(&p) == expected, "0x%x instead of 0x%x", vkattn_features(&p), expected);
}

Test(plan, each_feature_has_its_bit)
{
    expect_features((vkattn_problem){0}, 0);
    expect_features((vkattn_problem){.softcap = 1}, VKA_SOFTCAP);
    expect_features((vkattn_problem){.flags = VKATTN_ALIBI, .align = VKATTN_TOP_LEFT}, VKA_ALIBI_ON);
    expect_features((vkattn_problem){.flags = VKATTN_SEGMENTS}, VKA_SEGMENTS_ON);
    expect_features((vkattn_problem){.mask_kind = VKATTN_MASK_BYTES, .mask_true = VKATTN_TRUE_IGNORES},
                    VKA_MASK_IGNORES);
    expect_features((vkattn_problem){.mask_kind = VKATTN_MASK_BYTES, .mask_true = VKATTN_TRUE_ATTENDS}, 0);
    expect_features((vkattn_problem){.align = VKATTN_BOTTOM_RIGHT}, VKA_BOTTOM_RIGHT);
    expect_features((vkattn_problem){.flags = VKATTN_PREFIX}, VKA_PREFIX_ON);
    expect_features((vkattn_problem){.flags = VKATTN_KV_LENGTHS}, VKA_KV_LENGTHS_ON);
    expect_features((vkattn_problem){.flags = VKATTN_Q_LENGTHS}, VKA_Q_LENGTHS_ON);
    expect_features((vkattn_problem){.flags = VKATTN_SINKS}, VKA_SINKS_ON);
    expect_features((vkattn_problem){.flags = VKATTN_WRITE_LSE}, VKA_LSE_ON);
    expect_features((vkattn_problem){.flags = VKATTN_WRITE_WEIGHTS}, VKA_LSE_ON);
    expect_features((vkattn_problem){.flags = VKATTN_WRITE_LSE | VKATTN_LSE_BASE_2}, VKA_LSE_ON | VKA_LSE_BASE_2);
}

Test(plan, no_bias_has_no_type)
{
    const vkattn_problem in = {.len_q = 1, .len_kv = 1, .dim_qk = 1, .bias_type = VKATTN_F16};
    const struct plan plan = choose(&in, &devices[AMD].caps, NULL);
    const vkattn_lengths lengths = {1, 1};
    vka_params p;
    vkattn_plan_params(&plan, &lengths, &p);
    cr_expect(p.bias_type == VKA_TYPE_NONE);
}

/* ---- Counted work ---------------------------------------------------------------------------------------------- */

static double count_pairs(const struct problem *p)
{
    const int64_t shift = p->bottom_right ? (int64_t)p->len_kv - p->len_q : 0;
    double count = 0;
    for (int64_t i = 0; i < p->len_q; i++)
        for (int64_t j = 0; j < p->len_kv; j++)
            count += j - i - shift >= -(int64_t)p->left && j - i - shift <= p->right;
    return count;
}

static void check_pairs(uint32_t len_q, uint32_t len_kv, int32_t left, int32_t right)
{
    const int32_t bounds[2] = {left, right};
    for (int kind = 0; kind < 12; kind++) { /* with or without causal, left, right; both alignments */
        const vkattn_problem in = {.len_q = len_q,
                                   .len_kv = len_kv,
                                   .dim_qk = 1,
                                   .flags = (kind & 1 ? VKATTN_LEFT : 0u) | (kind & 2 ? VKATTN_RIGHT : 0u) |
                                            (kind >= 8 ? VKATTN_CAUSAL : 0u),
                                   .align = kind & 4 ? VKATTN_BOTTOM_RIGHT : VKATTN_TOP_LEFT,
                                   .left = bounds[0],
                                   .right = bounds[1]};
        const struct problem p = canonical(&in);
        cr_assert(vkattn_pairs(&p) == count_pairs(&p), "%ux%u, flags 0x%x, align %d, left %d, right %d: %g, not %g",
                  len_q, len_kv, in.flags, (int)in.align, left, right, vkattn_pairs(&p), count_pairs(&p));
    }
}

Test(plan, pairs_are_counted_exactly)
{
    const uint32_t lengths[] = {0, 1, 2, 3, 5, 8, 13};
    for (size_t q = 0; q < COUNT(lengths); q++)
        for (size_t k = 0; k < COUNT(lengths); k++)
            for (int32_t left = -16; left <= 16; left++)
                for (int32_t right = -16; right <= 16; right++)
                    check_pairs(lengths[q], lengths[k], left, right);
}

Test(plan, pairs_of_long_sequences_are_counted_exactly)
{
    const int32_t bounds[] = {INT32_MIN, -700, -1, 0, 1, 63, 1000, INT32_MAX};
    for (size_t l = 0; l < COUNT(bounds); l++)
        for (size_t r = 0; r < COUNT(bounds); r++) {
            check_pairs(700, 300, bounds[l], bounds[r]);
            check_pairs(300, 700, bounds[l], bounds[r]);
        }
}

static vkattn_report report_of(const vkattn_problem *in)
{
    vkattn_report report;
    choose(in, &devices[AMD].caps, &report);
    return report;
}

/* "N = 2048, d_model = 768, 12 heads of 64: 0.54 GFLOP for QK^T of one head, 12.9 GFLOP for the core of a layer,
 * 16.8 MB of f32 scores per head and 201 MB per layer" (SEMANTICS). QK^T is half of a head's work where dv = d. */
Test(plan, published_costs)
{
    const vkattn_problem head = {.len_q = 2048, .len_kv = 2048, .dim_qk = 64};
    vkattn_report report = report_of(&head);
    cr_expect(report.flops / 2 == 2.0 * 2048 * 2048 * 64 && fabs(report.flops / 2 - 0.54e9) < 0.005e9);
    cr_expect(report.score_bytes == 4.0 * 2048 * 2048 && fabs(report.score_bytes - 16.8e6) < 0.05e6);
    vkattn_problem layer = head;
    layer.heads = 12;
    report = report_of(&layer);
    cr_expect(fabs(report.flops - 12.9e9) < 0.05e9);
    cr_expect(fabs(report.score_bytes - 201e6) < 0.5e6);
    /* "At T = 8192 and 32 heads in bf16 the score matrix would be 4 GiB": half of the f32 one. */
    const vkattn_problem longer = {.heads = 32,
                                   .kv_heads = 8,
                                   .len_q = 8192,
                                   .len_kv = 8192,
                                   .dim_qk = 128,
                                   .q_type = VKATTN_BF16,
                                   .kv_type = VKATTN_BF16,
                                   .o_type = VKATTN_BF16};
    cr_expect(report_of(&longer).score_bytes / 2 == 4.0 * 1024 * 1024 * 1024);
}

Test(plan, a_band_is_not_counted_as_work)
{
    vkattn_problem p = shapes[CAUSAL].problem;
    cr_expect(report_of(&p).flops == 2.0 * 8 * (1024.0 * 1025 / 2) * 128);
    cr_expect(report_of(&p).score_bytes == 4.0 * 8 * 1024 * 1024, "the matrix is as large as without a band");
    p.flags |= VKATTN_LEFT, p.left = 0;
    cr_expect(report_of(&p).flops == 2.0 * 8 * 1024 * 128);
}

Test(plan, bytes_moved)
{
    vkattn_problem p = {
        .batch = 2, .heads = 6, .kv_heads = 3, .len_q = 5, .len_kv = 13, .dim_qk = 8, .dim_v = 4, .q_type = VKATTN_F16};
    const double plain = 2 * 6 * 5 * (8 * 2 + 4 * 4) + 2 * 3 * 13 * (8 + 4) * 4;
    cr_expect(report_of(&p).bytes_moved == plain);
    p.flags = VKATTN_BIAS;
    p.bias_type = VKATTN_F16;
    cr_expect(report_of(&p).bytes_moved == plain + 2 * 6 * 5 * 13 * 2);
    p.bias = (vkattn_layout){.order = VKATTN_STRIDED, .row = 13}; /* one for all heads and members */
    cr_expect(report_of(&p).bytes_moved == plain + 5 * 13 * 2);
    p.flags = 0;
    p.mask_kind = VKATTN_MASK_BYTES;
    p.mask_true = VKATTN_TRUE_ATTENDS;
    cr_expect(report_of(&p).bytes_moved == plain + 2 * 6 * 5 * 13);
}

/* ---- The catalogue --------------------------------------------------------------------------------------------- */

Test(plan, the_catalogue_lists_every_kernel_once)
{
    uint32_t count = 0, forward = 0;
    for (; vkattn_kernel_name(count); count++) {
        forward += vkattn_kernels[count]->role == ROLE_FORWARD;
        for (uint32_t i = 0; i < count; i++)
            cr_expect_str_neq(vkattn_kernel_name(i), vkattn_kernel_name(count));
    }
    cr_expect(count == vkattn_kernel_count && forward <= VKATTN_MAX_KERNELS);
    cr_expect(vkattn_kernel_name(UINT32_MAX) == NULL);
}

/* A kernel's own numbers are sound: modules are there, tiles have sizes, and constants set the work group. */
Test(plan, every_kernel_is_whole)
{
    const struct problem p = canonical(&shapes[PREFILL].problem);
    for (uint32_t k = 0; k < vkattn_kernel_count; k++) {
        const struct kernel *kernel = vkattn_kernels[k];
        for (int access = 0; access < 2; access++)
            if (!kernel->spirv[access].missing)
                cr_expect(kernel->spirv[access].count > 5, "%s", kernel->name);
        cr_expect(kernel->tile_count > 0, "%s", kernel->name);
        for (uint32_t i = 0; i < kernel->tile_count; i++) {
            uint32_t constants[VKA_IDS] = {0};
            kernel->constants(&p, &devices[AMD].caps, &kernel->tiles[i], constants);
            cr_expect(constants[VKA_ID_WORKGROUP] > 0 &&
                          (constants[VKA_ID_WORKGROUP] == kernel->tiles[i].workgroup || kernel->tiles[i].subgroups > 0),
                      "%s, tile %u", kernel->name, i + 1);
            cr_expect(kernel->group_rows(&p, &kernel->tiles[i]) > 0, "%s, tile %u", kernel->name, i + 1);
        }
    }
}

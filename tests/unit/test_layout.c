/* The parameter block and the push constants lie where the embedded modules look for them, and every specialization
 * constant has an id that the host knows: C and GLSL read one header, but each by its own rules. */
#include "kernel.h"

#include <criterion/criterion.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Words of SPIR-V that matter here. */
enum { HEADER = 5, OP_NAME = 5, OP_MEMBER_NAME = 6, OP_TYPE_STRUCT = 30, OP_DECORATE = 71, OP_MEMBER_DECORATE = 72 };
enum { SPEC_ID = 1, ARRAY_STRIDE = 6, OFFSET = 35 };

struct module {
    const uint32_t *words;
    size_t count;
};

struct member {
    const char *name;
    size_t offset;
};

static const struct layout {
    const char *name;
    struct member members[19];
    size_t count;
} layouts[] = {
#define M(type, name)               \
    {                               \
#name, offsetof(type, name) \
    }
    {"vka_tensor",
     {M(vka_tensor, address), M(vka_tensor, batch_stride), M(vka_tensor, head_stride), M(vka_tensor, row_stride),
      M(vka_tensor, unused)},
     5},
    {"vka_params",
     {M(vka_params, tensors), M(vka_params, batch), M(vka_params, heads), M(vka_params, group), M(vka_params, len_q),
      M(vka_params, len_kv), M(vka_params, dim_qk), M(vka_params, dim_v), M(vka_params, q_type), M(vka_params, kv_type),
      M(vka_params, o_type), M(vka_params, bias_type), M(vka_params, mask_kind), M(vka_params, features),
      M(vka_params, left), M(vka_params, right), M(vka_params, scale), M(vka_params, softcap), M(vka_params, parts)},
     19},
    {"vka_push",
     {M(vka_push, params), M(vka_push, first), M(vka_push, count), M(vka_push, row_blocks), M(vka_push, unused)},
     5},
#undef M
};

/* The next instruction of `opcode` from *at on; NULL: there is none. */
static const uint32_t *next(const struct module *spirv, uint32_t opcode, size_t *at)
{
    while (*at < spirv->count) {
        const uint32_t *instruction = spirv->words + *at;
        cr_assert(instruction[0] >> 16 > 0);
        *at += instruction[0] >> 16;
        if ((instruction[0] & 0xffff) == opcode)
            return instruction;
    }
    return NULL;
}

static const char *name_of(const struct module *spirv, uint32_t id)
{
    const uint32_t *i;
    for (size_t at = HEADER; (i = next(spirv, OP_NAME, &at));)
        if (i[1] == id)
            return (const char *)(i + 2);
    return "";
}

/* GLSL's names are those of C, in that order. */
static void expect_names(const struct module *spirv, uint32_t id, const struct layout *layout, const char *kernel)
{
    size_t count = 0;
    const uint32_t *i;
    for (size_t at = HEADER; (i = next(spirv, OP_MEMBER_NAME, &at));) {
        if (i[1] != id)
            continue;
        const char *name = (const char *)(i + 3);
        cr_assert(i[2] < layout->count, "%s: %s has a member %s that this test does not", kernel, layout->name, name);
        cr_expect_str_eq(name, layout->members[i[2]].name);
        count++;
    }
    cr_expect(count == layout->count, "%s: %s has %zu members", kernel, layout->name, count);
}

/* The members of a struct that has offsets lie where C puts them; how many have one. */
static size_t expect_offsets(const struct module *spirv, uint32_t id, const struct layout *layout, const char *kernel)
{
    size_t count = 0;
    const uint32_t *i;
    for (size_t at = HEADER; (i = next(spirv, OP_MEMBER_DECORATE, &at));) {
        if (i[1] != id || i[3] != OFFSET)
            continue;
        cr_assert(i[2] < layout->count);
        const struct member *member = &layout->members[i[2]];
        cr_expect(i[4] == member->offset, "%s: %s.%s is at %u, and in C at %zu", kernel, layout->name, member->name,
                  i[4], member->offset);
        count++;
    }
    cr_expect(count == 0 || count == layout->count, "%s: %zu members of %s have offsets", kernel, count, layout->name);
    return count;
}

/* A module may hold a struct twice, once without offsets, for variables. */
static void expect_layout(const struct module *spirv, const struct layout *layout, const char *kernel)
{
    size_t laid_out = 0;
    const uint32_t *i;
    for (size_t at = HEADER; (i = next(spirv, OP_TYPE_STRUCT, &at));)
        if (strcmp(name_of(spirv, i[1]), layout->name) == 0) {
            expect_names(spirv, i[1], layout, kernel);
            laid_out += expect_offsets(spirv, i[1], layout, kernel);
        }
    cr_expect(laid_out > 0, "%s has no %s", kernel, layout->name);
}

static void expect_module(const struct spirv *spirv, void (*expect)(const struct module *spirv, const char *kernel),
                          const char *kernel)
{
    if (spirv->missing)
        return;
    uint32_t *words = calloc(spirv->count, sizeof *words);
    cr_assert(words != NULL);
    vkattn_spirv_words(spirv, words);
    cr_expect(words[0] == 0x07230203, "%s: SPIR-V's magic number", kernel);
    expect(&(struct module){words, spirv->count}, kernel);
    free(words);
}

static void for_each_module(void (*expect)(const struct module *spirv, const char *kernel))
{
    for (uint32_t k = 0; k < vkattn_kernel_count; k++)
        for (int access = 0; access < 2; access++)
            expect_module(&vkattn_kernels[k]->spirv[access], expect, vkattn_kernels[k]->name);
}

static void expect_layouts(const struct module *spirv, const char *kernel)
{
    for (size_t i = 0; i < COUNT(layouts); i++)
        expect_layout(spirv, &layouts[i], kernel);
}

Test(layout, blocks_lie_alike_in_c_and_in_every_module)
{
    for_each_module(expect_layouts);
}

/* The array of tensors is the only one of structs. */
static void expect_stride(const struct module *spirv, const char *kernel)
{
    bool found = false;
    const uint32_t *i;
    for (size_t at = HEADER; (i = next(spirv, OP_DECORATE, &at));)
        found |= i[2] == ARRAY_STRIDE && i[3] == sizeof(vka_tensor);
    cr_expect(found, "%s: no array has the stride %zu of tensors", kernel, sizeof(vka_tensor));
}

Test(layout, tensors_follow_each_other_alike)
{
    for_each_module(expect_stride);
}

static void expect_ids(const struct module *spirv, const char *kernel)
{
    bool seen[VKA_IDS] = {0};
    const uint32_t *i;
    for (size_t at = HEADER; (i = next(spirv, OP_DECORATE, &at));) {
        if (i[2] != SPEC_ID)
            continue;
        cr_assert(i[3] < VKA_IDS, "%s has a constant of id %u, beyond VKA_IDS", kernel, i[3]);
        seen[i[3]] = true;
    }
    cr_expect(seen[VKA_ID_WORKGROUP], "%s has no size of the work group", kernel);
}

Test(layout, constants_have_ids_of_params_h)
{
    for_each_module(expect_ids);
}

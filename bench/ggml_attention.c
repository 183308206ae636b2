/* One attention by ggml, timed: the other side of bench/peers, which builds it where ggml is.
 *
 *   ggml_attention DEVICE CASE RUNS [PRECISION]
 *
 * DEVICE is ggml's name: CPU, Vulkan0. CASE is d,heads,kv_heads,queries,keys,causal (causal: 0 or 1); K and V are f16,
 * Q and O f32, the only types that ggml takes there, and a causal mask is a dense one of f16. PRECISION is f32 (what
 * llama.cpp asks for) or default. The first run compiles; it is timed apart, without the making of the tensors. Prints
 * JSON: seconds by processor time and by the wall clock of the first run and of each further one, and the mean square
 * of O, by which bench/peers sees that the same was computed. */
#define _POSIX_C_SOURCE 200809L

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 2, MOST_RUNS = 1000 };

struct shape {
    int dim, heads, kv_heads, queries, keys, causal;
};

struct moment {
    double cpu, wall;
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct moment moment(void)
{
    return (struct moment){seconds(CLOCK_PROCESS_CPUTIME_ID), seconds(CLOCK_MONOTONIC)};
}

static void fail(const char *what)
{
    fprintf(stderr, "ggml_attention: %s\n", what);
    exit(1);
}

/* ---- Data: vkattn bench's generator, uniform in -1 .. 1 -------------------------------------------------------- */

static float next_value(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(*state >> 40) * 0x1p-23 - 1.0);
}

static void set_tensor(struct ggml_tensor *tensor, const float *values)
{
    const int64_t count = ggml_nelements(tensor);
    ggml_fp16_t *halves = malloc((size_t)count * sizeof *halves);
    if (!halves)
        fail("out of memory");
    ggml_fp32_to_fp16_row(values, halves, count);
    if (tensor->type == GGML_TYPE_F16)
        ggml_backend_tensor_set(tensor, halves, 0, ggml_nbytes(tensor));
    else
        ggml_backend_tensor_set(tensor, values, 0, ggml_nbytes(tensor));
    free(halves);
}

static void fill_random(struct ggml_tensor *tensor, uint64_t *state)
{
    const int64_t count = ggml_nelements(tensor);
    float *values = malloc((size_t)count * sizeof *values);
    if (!values)
        fail("out of memory");
    for (int64_t i = 0; i < count; i++)
        values[i] = next_value(state);
    set_tensor(tensor, values);
    free(values);
}

static void fill_causal(struct ggml_tensor *mask, const struct shape *shape)
{
    float *values = malloc((size_t)shape->queries * (size_t)shape->keys * sizeof *values);
    if (!values)
        fail("out of memory");
    for (int query = 0; query < shape->queries; query++)
        for (int key = 0; key < shape->keys; key++)
            values[(size_t)query * (size_t)shape->keys + (size_t)key] = key <= query ? 0 : -INFINITY;
    set_tensor(mask, values);
    free(values);
}

/* ---- The attention --------------------------------------------------------------------------------------------- */

static ggml_backend_t open_backend(const char *name)
{
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name);
    if (!device)
        fail("ggml has no such device (a CPU's Vulkan device is ignored unless GGML_VK_VISIBLE_DEVICES=0)");
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    if (!backend)
        fail("the device cannot be opened");
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    ggml_backend_set_n_threads_t set_threads =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads");
    if (set_threads)
        set_threads(backend, THREADS);
    return backend;
}

struct attention {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_tensor *q, *k, *v, *mask, *o;
};

static void build(struct attention *a, const struct shape *shape, enum ggml_prec precision)
{
    const int64_t dim = shape->dim, queries = shape->queries, keys = shape->keys;
    const struct ggml_init_params params = {.mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                            .no_alloc = true};
    a->context = ggml_init(params);
    if (!a->context)
        fail("ggml_init failed");
    a->q = ggml_new_tensor_4d(a->context, GGML_TYPE_F32, dim, queries, shape->heads, 1);
    a->k = ggml_new_tensor_4d(a->context, GGML_TYPE_F16, dim, keys, shape->kv_heads, 1);
    a->v = ggml_new_tensor_4d(a->context, GGML_TYPE_F16, dim, keys, shape->kv_heads, 1);
    a->mask = shape->causal ? ggml_new_tensor_4d(a->context, GGML_TYPE_F16, keys, queries, 1, 1) : NULL;
    a->o = ggml_flash_attn_ext(a->context, a->q, a->k, a->v, a->mask, 1 / sqrtf((float)dim), 0, 0);
    ggml_prec_set_acc(a->o, precision);
    a->graph = ggml_new_graph(a->context);
    ggml_build_forward_expand(a->graph, a->o);
}

static void fill(struct attention *a, const struct shape *shape)
{
    uint64_t state = 1;
    fill_random(a->q, &state);
    fill_random(a->k, &state);
    fill_random(a->v, &state);
    if (a->mask)
        fill_causal(a->mask, shape);
}

static struct moment run(ggml_backend_t backend, const struct attention *a)
{
    const struct moment start = moment();
    if (ggml_backend_graph_compute(backend, a->graph) != GGML_STATUS_SUCCESS)
        fail("the graph could not be computed");
    ggml_backend_synchronize(backend);
    const struct moment end = moment();
    return (struct moment){end.cpu - start.cpu, end.wall - start.wall};
}

static double mean_square(const struct ggml_tensor *o)
{
    const int64_t count = ggml_nelements(o);
    float *values = malloc(ggml_nbytes(o));
    double sum = 0;
    if (!values)
        fail("out of memory");
    ggml_backend_tensor_get(o, values, 0, ggml_nbytes(o));
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    free(values);
    return sum / (double)count;
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static void print_times(const char *name, const struct moment *times, int count, double moment_of(struct moment))
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%.9f", i ? ", " : "", moment_of(times[i]));
    printf("]");
}

static double cpu_of(struct moment m)
{
    return m.cpu;
}

static double wall_of(struct moment m)
{
    return m.wall;
}

int main(int argc, char **argv)
{
    struct shape s;
    struct moment times[MOST_RUNS];
    const int runs = argc > 3 ? atoi(argv[3]) : 0;
    if (argc < 4 || argc > 5 || runs < 1 || runs > MOST_RUNS ||
        sscanf(argv[2], "%d,%d,%d,%d,%d,%d", &s.dim, &s.heads, &s.kv_heads, &s.queries, &s.keys, &s.causal) != 6) {
        fprintf(stderr, "Usage: ggml_attention DEVICE d,heads,kv_heads,queries,keys,causal RUNS [f32|default]\n");
        return 2;
    }
    const bool precise = argc < 5 || strcmp(argv[4], "f32") == 0;
    struct attention a = {0};
    ggml_backend_t backend = open_backend(argv[1]);
    build(&a, &s, precise ? GGML_PREC_F32 : GGML_PREC_UNDEFINED);
    if (!ggml_backend_supports_op(backend, a.o))
        fail("the device does not take this attention");
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(a.context, backend);
    if (!buffer)
        fail("the tensors cannot be allocated");
    fill(&a, &s);
    const struct moment first = run(backend, &a);
    for (int i = 0; i < runs; i++)
        times[i] = run(backend, &a);
    printf("{\"device\": \"%s\", \"ggml\": \"%s\", \"first_cpu\": %.9f, \"first_wall\": %.9f",
           ggml_backend_dev_description(ggml_backend_get_device(backend)), ggml_version(), first.cpu, first.wall);
    print_times("cpu", times, runs, cpu_of);
    print_times("wall", times, runs, wall_of);
    printf(", \"mean_square\": %.9g}\n", mean_square(a.o));
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    ggml_free(a.context);
    return 0;
}

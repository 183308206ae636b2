#include "inputs.h"

#include "command.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <vkattn/reference.h>

/* ---- Common ---------------------------------------------------------------------------------------------------- */

bool inputs_product(const uint64_t *sizes, unsigned count, size_t *product)
{
    struct npy_array array = {0};
    const bool ok = npy_set_shape(&array, NPY_U8, count, sizes);
    *product = array.size;
    return ok;
}

static void *allocate(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

static bool no_memory(const char *path, size_t count, size_t size)
{
    command_complain("%s: no memory for %zu elements of %zu bytes", path, count, size);
    return false;
}

static bool read_array(const char *path, struct npy_array *array)
{
    char message[NPY_MESSAGE_SIZE];
    command_progress("reading %s ...", path);
    const bool ok = npy_read(path, array, message);
    command_progress(NULL);
    if (!ok)
        command_complain("%s", message);
    return ok;
}

static bool wrong_type(const char *path, const struct npy_array *array, const char *wanted)
{
    command_complain("%s: its type is %s; it should be %s", path, npy_type_name(array->type), wanted);
    return false;
}

/* "F.npy: its shape (2, 3) is not (2, 4), which is [B,Tk]" */
static bool expect_shape(const char *path, const struct npy_array *array, unsigned dims, const uint64_t *shape,
                         const char *names)
{
    char is[NPY_SHAPE_TEXT_SIZE], should[NPY_SHAPE_TEXT_SIZE];
    bool equal = array->dims == dims;
    for (unsigned i = 0; i < dims && equal; i++)
        equal = array->shape[i] == shape[i];
    if (!equal)
        command_complain("%s: its shape %s should be %s, which is %s", path,
                         npy_shape_text(array->dims, array->shape, is), npy_shape_text(dims, shape, should), names);
    return equal;
}

static void take_data(struct npy_array *array, struct blob *blob)
{
    *blob = (struct blob){array->data, array->size};
    array->data = NULL;
}

/* ---- Tensors of floats ----------------------------------------------------------------------------------------- */

static bool is_float(const struct npy_array *array)
{
    return array->type == NPY_F16 || array->type == NPY_F32 || array->type == NPY_F64;
}

static vkattn_dtype type_of_file(const struct npy_array *array)
{
    return array->type == NPY_F16 ? VKATTN_F16 : VKATTN_F32;
}

double inputs_element(const struct npy_array *array, size_t i)
{
    const char *at = (const char *)array->data + i * npy_type_size(array->type);
    if (array->type == NPY_F64) {
        double value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    return (double)vkattn_decode(type_of_file(array), at);
}

/* Round every element to `type`; *overflowed counts finite ones that become infinite. */
static void convert(const struct npy_array *array, vkattn_dtype type, void *to, size_t *overflowed)
{
    const size_t size = vkattn_dtype_size(type);
    *overflowed = 0;
    for (size_t i = 0; i < array->count; i++) {
        const double value = inputs_element(array, i);
        char *at = (char *)to + i * size;
        vkattn_encode(type, (float)value, at);
        *overflowed += isfinite(value) && !isfinite((double)vkattn_decode(type, at));
    }
}

/* Move the array's elements to a blob as `type`. Says what changes in a way that nobody asked for. */
static bool store_floats(const char *path, struct npy_array *array, vkattn_dtype type, struct blob *blob)
{
    if (array->type != NPY_F64 && type_of_file(array) == type) {
        take_data(array, blob);
        return true;
    }
    size_t overflowed;
    const size_t size = vkattn_dtype_size(type);
    void *data = allocate(array->count, size);
    if (!data)
        return no_memory(path, array->count, size);
    convert(array, type, data, &overflowed);
    *blob = (struct blob){data, array->count * size};
    if (array->type == NPY_F64)
        command_complain("note: %s: float64 is stored as %s", path, command_type_name(type));
    if (overflowed)
        command_complain("note: %s: %zu of its elements are beyond the range of %s and become infinite", path,
                         overflowed, command_type_name(type));
    return true;
}

/* ---- Q, K, V --------------------------------------------------------------------------------------------------- */

/* A file of Q, K or V. Names are those of its dimensions: "H" and "Tq" for Q, "G" and "Tk" for K. */
struct tensor_file {
    const char *path, *head_name, *row_name, *width_name;
    struct npy_array array;
    uint32_t batch, heads, rows, width;
};

/* One dimension; a missing one (axis < 0) is 1. */
static bool take_dimension(const struct tensor_file *file, int axis, const char *name, uint64_t least, uint64_t most,
                           uint32_t *value)
{
    char shape[NPY_SHAPE_TEXT_SIZE];
    const uint64_t there = axis < 0 ? 1 : file->array.shape[axis];
    *value = (uint32_t)there;
    if (there >= least && there <= most)
        return true;
    command_complain("%s: its shape %s has %s = %" PRIu64 ", which should be %" PRIu64 " to %" PRIu64, file->path,
                     npy_shape_text(file->array.dims, file->array.shape, shape), name, there, least, most);
    return false;
}

static bool read_tensor_file(struct tensor_file *file, vkattn_order layout)
{
    char shape[NPY_SHAPE_TEXT_SIZE];
    if (!read_array(file->path, &file->array))
        return false;
    if (!is_float(&file->array))
        return wrong_type(file->path, &file->array, "float16, float32 or float64");
    const int dims = (int)file->array.dims;
    if (dims < 2 || dims > 4) {
        command_complain("%s: its shape %s has %d dimension%s; it should have 2, 3 or 4", file->path,
                         npy_shape_text(file->array.dims, file->array.shape, shape), dims, dims == 1 ? "" : "s");
        return false;
    }
    const bool rows_first = layout == VKATTN_BTHD && dims > 2;
    const int head_axis = rows_first ? dims - 2 : dims - 3;
    const int row_axis = rows_first ? dims - 3 : dims - 2;
    return take_dimension(file, dims - 4, "B", 1, UINT32_MAX, &file->batch) &&
           take_dimension(file, head_axis, file->head_name, 1, UINT32_MAX, &file->heads) &&
           take_dimension(file, row_axis, file->row_name, 0, OPTIONS_MAX_LEN, &file->rows) &&
           take_dimension(file, dims - 1, file->width_name, 1, VKATTN_MAX_DIM, &file->width);
}

/* Two files must agree on a dimension. */
static bool agree(const struct tensor_file *a, uint32_t value_a, const struct tensor_file *b, uint32_t value_b,
                  const char *name)
{
    char shape_a[NPY_SHAPE_TEXT_SIZE], shape_b[NPY_SHAPE_TEXT_SIZE];
    if (value_a == value_b)
        return true;
    command_complain("%s: its shape %s has %s = %" PRIu32 ", but %s of shape %s has %s = %" PRIu32, a->path,
                     npy_shape_text(a->array.dims, a->array.shape, shape_a), name, value_a, b->path,
                     npy_shape_text(b->array.dims, b->array.shape, shape_b), name, value_b);
    return false;
}

static bool shapes_agree(const struct tensor_file *q, const struct tensor_file *k, const struct tensor_file *v)
{
    if (!agree(k, k->batch, q, q->batch, "B") || !agree(k, k->width, q, q->width, "d") ||
        !agree(v, v->batch, q, q->batch, "B") || !agree(v, v->heads, k, k->heads, "G") ||
        !agree(v, v->rows, k, k->rows, "Tk"))
        return false;
    if (q->heads % k->heads != 0) {
        command_complain("%s: it has G = %" PRIu32 " heads, which should divide the H = %" PRIu32 " heads of %s",
                         k->path, k->heads, q->heads, q->path);
        return false;
    }
    return true;
}

/* Types of Q, of K and V, and of O. */
static bool choose_types(const struct options *options, const struct tensor_file *q, const struct tensor_file *k,
                         const struct tensor_file *v, vkattn_problem *problem)
{
    problem->q_type = options->cast_given ? options->cast : type_of_file(&q->array);
    problem->kv_type = options->cast_given ? options->cast : type_of_file(&k->array);
    problem->o_type = problem->q_type;
    if (options->cast_given || type_of_file(&v->array) == problem->kv_type)
        return true;
    command_complain(
        "%s: its type is %s, but %s is %s; K and V are stored alike, and --cast f32, f16 or bf16 makes them so",
        v->path, npy_type_name(v->array.type), k->path, npy_type_name(k->array.type));
    return false;
}

static bool store_qkv(const struct options *options, struct tensor_file *q, struct tensor_file *k,
                      struct tensor_file *v, struct inputs *inputs)
{
    vkattn_problem *problem = &inputs->problem;
    if (!read_tensor_file(q, options->layout) || !read_tensor_file(k, options->layout) ||
        !read_tensor_file(v, options->layout) || !shapes_agree(q, k, v) || !choose_types(options, q, k, v, problem))
        return false;
    problem->batch = q->batch;
    problem->heads = q->heads;
    problem->kv_heads = k->heads;
    problem->len_q = q->rows;
    problem->len_kv = k->rows;
    problem->dim_qk = q->width;
    problem->dim_v = v->width;
    inputs->q_dims = q->array.dims;
    return store_floats(q->path, &q->array, problem->q_type, &inputs->blobs[BLOB_Q]) &&
           store_floats(k->path, &k->array, problem->kv_type, &inputs->blobs[BLOB_K]) &&
           store_floats(v->path, &v->array, problem->kv_type, &inputs->blobs[BLOB_V]);
}

static bool load_qkv(const struct options *options, struct inputs *inputs)
{
    struct tensor_file q = {options->q, "H", "Tq", "d", {0}, 0, 0, 0, 0};
    struct tensor_file k = {options->k, "G", "Tk", "d", {0}, 0, 0, 0, 0};
    struct tensor_file v = {options->v, "G", "Tk", "dv", {0}, 0, 0, 0, 0};
    const bool ok = store_qkv(options, &q, &k, &v, inputs);
    npy_free(&q.array);
    npy_free(&k.array);
    npy_free(&v.array);
    return ok;
}

static void use_shape(const struct options *options, struct inputs *inputs)
{
    vkattn_problem *problem = &inputs->problem;
    problem->batch = options->shape[SHAPE_B];
    problem->heads = options->shape[SHAPE_H];
    problem->kv_heads = options->shape[SHAPE_G];
    problem->len_q = options->shape[SHAPE_TQ];
    problem->len_kv = options->shape[SHAPE_TK];
    problem->dim_qk = options->shape[SHAPE_D];
    problem->dim_v = options->shape[SHAPE_DV];
    problem->q_type = options->cast_given ? options->cast : options->type;
    problem->kv_type = problem->q_type;
    problem->o_type = problem->q_type;
    inputs->q_dims = 4;
}

/* ---- Masks and biases ------------------------------------------------------------------------------------------ */

/* A [B,H,Tq,Tk] array as a file has it: 1 where it broadcasts. */
static bool broadcast_shape(const char *path, const struct npy_array *array, const uint64_t target[4], uint64_t full[4])
{
    char is[NPY_SHAPE_TEXT_SIZE], should[NPY_SHAPE_TEXT_SIZE];
    bool fits = array->dims <= 4;
    for (unsigned i = 0; i < 4 && fits; i++) {
        const unsigned missing = 4 - array->dims;
        full[i] = i < missing ? 1 : array->shape[i - missing];
        fits = full[i] == 1 || full[i] == target[i];
    }
    if (!fits)
        command_complain("%s: its shape %s does not broadcast to %s, which is [B,H,Tq,Tk]", path,
                         npy_shape_text(array->dims, array->shape, is), npy_shape_text(4, target, should));
    return fits;
}

/* The elements of a row must be adjacent: repeat each of an array whose last dimension is 1. */
static bool repeat_keys(const char *path, size_t element_size, uint64_t keys, struct blob *blob)
{
    size_t size;
    const size_t rows = blob->size / element_size;
    char *to = inputs_product((uint64_t[]){rows, keys, element_size}, 3, &size) ? allocate(size, 1) : NULL;
    if (!to) {
        command_complain("%s: no memory to repeat %zu elements for %" PRIu64 " keys", path, rows, keys);
        return false;
    }
    char *at = to;
    for (size_t row = 0; row < rows; row++) {
        for (uint64_t key = 0; key < keys; key++, at += element_size)
            memcpy(at, (char *)blob->data + row * element_size, element_size);
    }
    free(blob->data);
    *blob = (struct blob){to, size};
    return true;
}

/* Describe a stored [B,H,Tq,Tk] blob, which may broadcast, to the library. */
static bool broadcast(const char *path, const struct npy_array *array, const struct inputs *inputs, bool shape_only,
                      struct blob *blob, vkattn_layout *layout)
{
    const vkattn_problem *problem = &inputs->problem;
    const uint64_t target[4] = {problem->batch, problem->heads, problem->len_q, problem->len_kv};
    uint64_t full[4];
    if (!broadcast_shape(path, array, target, full))
        return false;
    /* Without tensors (explain --shape) a claimed shape must not cost memory. */
    if (full[3] != target[3] && !shape_only && blob->size > 0 &&
        !repeat_keys(path, blob->size / array->count, target[3], blob))
        return false;
    layout->order = VKATTN_STRIDED;
    layout->row = full[2] == 1 ? 0 : target[3];
    layout->head = full[1] == 1 ? 0 : full[2] * target[3];
    layout->batch = full[0] == 1 ? 0 : full[1] * full[2] * target[3];
    return true;
}

static bool load_mask(const struct options *options, struct inputs *inputs)
{
    struct npy_array array;
    if (!options->mask)
        return true;
    if (!read_array(options->mask, &array))
        return false;
    bool ok = array.type == NPY_BOOL || array.type == NPY_U8 || wrong_type(options->mask, &array, "bool or uint8");
    if (ok) {
        take_data(&array, &inputs->blobs[BLOB_MASK]);
        ok = broadcast(options->mask, &array, inputs, options->shape_given, &inputs->blobs[BLOB_MASK],
                       &inputs->problem.mask);
    }
    inputs->problem.mask_kind = VKATTN_MASK_BYTES;
    inputs->problem.mask_true = options->mask_true ? options->mask_true : VKATTN_TRUE_ATTENDS;
    npy_free(&array);
    return ok;
}

static bool load_bias(const struct options *options, struct inputs *inputs)
{
    struct npy_array array;
    if (!options->bias)
        return true;
    if (!read_array(options->bias, &array))
        return false;
    inputs->problem.flags |= VKATTN_BIAS;
    inputs->problem.bias_type = type_of_file(&array);
    const bool ok = (is_float(&array) || wrong_type(options->bias, &array, "float16, float32 or float64")) &&
                    store_floats(options->bias, &array, inputs->problem.bias_type, &inputs->blobs[BLOB_BIAS]) &&
                    broadcast(options->bias, &array, inputs, options->shape_given, &inputs->blobs[BLOB_BIAS],
                              &inputs->problem.bias);
    npy_free(&array);
    return ok;
}

/* ---- Vectors --------------------------------------------------------------------------------------------------- */

/* float [H], stored as f32 */
static bool load_head_floats(const char *path, uint32_t flag, struct inputs *inputs, enum blob_id id)
{
    struct npy_array array;
    if (!path)
        return true;
    if (!read_array(path, &array))
        return false;
    inputs->problem.flags |= flag;
    const bool ok = (is_float(&array) || wrong_type(path, &array, "float16, float32 or float64")) &&
                    expect_shape(path, &array, 1, (uint64_t[]){inputs->problem.heads}, "[H]") &&
                    store_floats(path, &array, VKATTN_F32, &inputs->blobs[id]);
    npy_free(&array);
    return ok;
}

static int64_t integer(const struct npy_array *array, size_t i)
{
    if (array->type == NPY_I64) {
        int64_t value;
        memcpy(&value, (const char *)array->data + i * sizeof value, sizeof value);
        return value;
    }
    int32_t value;
    memcpy(&value, (const char *)array->data + i * sizeof value, sizeof value);
    return value;
}

/* Values that a file may hold, and the largest that is passed on. */
struct range {
    int64_t least, most, clamp;
};

static bool out_of_range(const char *path, size_t i, int64_t value, struct range range)
{
    if (range.most == INT64_MAX)
        command_complain("%s: element %zu is %" PRId64 ", which should be at least %" PRId64, path, i, value,
                         range.least);
    else
        command_complain("%s: element %zu is %" PRId64 ", which should be %" PRId64 " to %" PRId64, path, i, value,
                         range.least, range.most);
    return false;
}

static bool store_integers(const char *path, const struct npy_array *array, struct range range, struct blob *blob)
{
    int32_t *to = allocate(array->count, sizeof *to);
    if (!to)
        return no_memory(path, array->count, sizeof *to);
    *blob = (struct blob){to, array->count * sizeof *to};
    for (size_t i = 0; i < array->count; i++) {
        const int64_t value = integer(array, i);
        if (value < range.least || value > range.most)
            return out_of_range(path, i, value, range);
        to[i] = (int32_t)(value > range.clamp ? range.clamp : value);
    }
    return true;
}

/* integers [B], or [B,rows] (with B = 1 also [rows]) where row_names is given: "[B,Tk]" */
static bool load_integers(const char *path, uint32_t flag, struct inputs *inputs, enum blob_id id, struct range range,
                          uint64_t rows, const char *row_names)
{
    struct npy_array array;
    if (!path)
        return true;
    if (!read_array(path, &array))
        return false;
    inputs->problem.flags |= flag;
    const uint64_t batch = inputs->problem.batch;
    bool ok = array.type == NPY_I32 || array.type == NPY_I64 || wrong_type(path, &array, "int32 or int64");
    if (!row_names)
        ok = ok && expect_shape(path, &array, 1, &batch, "[B]");
    else if (batch != 1 || array.dims != 1 || array.shape[0] != rows)
        ok = ok && expect_shape(path, &array, 2, (uint64_t[]){batch, rows}, row_names);
    ok = ok && store_integers(path, &array, range, &inputs->blobs[id]);
    npy_free(&array);
    return ok;
}

static bool load_vectors(const struct options *options, struct inputs *inputs)
{
    const uint32_t len_q = inputs->problem.len_q, len_kv = inputs->problem.len_kv;
    const struct range q_length = {0, len_q < INT32_MAX ? len_q : INT32_MAX, INT32_MAX};
    const struct range kv_length = {0, len_kv < INT32_MAX ? len_kv : INT32_MAX, INT32_MAX};
    const struct range prefix = {0, INT64_MAX, kv_length.most};
    const struct range segment = {INT32_MIN, INT32_MAX, INT32_MAX};
    return load_head_floats(options->alibi, VKATTN_ALIBI, inputs, BLOB_ALIBI) &&
           load_head_floats(options->sinks, VKATTN_SINKS, inputs, BLOB_SINKS) &&
           load_integers(options->kv_lengths, VKATTN_KV_LENGTHS, inputs, BLOB_KV_LENGTHS, kv_length, 0, NULL) &&
           load_integers(options->q_lengths, VKATTN_Q_LENGTHS, inputs, BLOB_Q_LENGTHS, q_length, 0, NULL) &&
           load_integers(options->prefix, VKATTN_PREFIX, inputs, BLOB_PREFIX, prefix, 0, NULL) &&
           load_integers(options->q_segments, VKATTN_SEGMENTS, inputs, BLOB_Q_SEGMENTS, segment, len_q, "[B,Tq]") &&
           load_integers(options->kv_segments, VKATTN_SEGMENTS, inputs, BLOB_KV_SEGMENTS, segment, len_kv, "[B,Tk]");
}

/* ---- The whole problem ----------------------------------------------------------------------------------------- */

static void use_options(const struct options *options, vkattn_problem *problem)
{
    problem->scale = options->scale;
    problem->softcap = options->softcap;
    problem->align = options_align(options);
    problem->left = options->left;
    problem->right = options->right;
    problem->flags |=
        (options->causal ? VKATTN_CAUSAL : 0u) | (options->window && options->left >= 0 ? VKATTN_LEFT : 0u) |
        (options->window && options->right >= 0 ? VKATTN_RIGHT : 0u) | (options->lse ? VKATTN_WRITE_LSE : 0u) |
        (options->lse_base_2 ? VKATTN_LSE_BASE_2 : 0u) | (options->weights ? VKATTN_WRITE_WEIGHTS : 0u);
    problem->q.order = problem->k.order = problem->v.order = problem->o.order = options->layout;
}

bool inputs_load(const struct options *options, struct inputs *inputs)
{
    *inputs = (struct inputs){0};
    if (options->shape_given)
        use_shape(options, inputs);
    else if (!load_qkv(options, inputs))
        return false;
    use_options(options, &inputs->problem);
    if (!load_mask(options, inputs) || !load_bias(options, inputs) || !load_vectors(options, inputs))
        return false;
    const vkattn_status status = vkattn_problem_check(&inputs->problem);
    if (status != VKATTN_OK)
        command_fail(status);
    return status == VKATTN_OK;
}

static bool allocate_output(struct blob *blob, const char *name, const uint64_t sizes[5])
{
    if (inputs_product(sizes, 5, &blob->size) && (blob->data = allocate(blob->size, 1)))
        return true;
    command_complain("no memory for %s of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 " elements", name,
                     sizes[0], sizes[1], sizes[2], sizes[3]);
    return false;
}

bool inputs_allocate_outputs(struct inputs *inputs)
{
    const vkattn_problem *p = &inputs->problem;
    const uint64_t o[5] = {p->batch, p->heads, p->len_q, p->dim_v, vkattn_dtype_size(p->o_type)};
    const uint64_t lse[5] = {p->batch, p->heads, p->len_q, 1, sizeof(float)};
    const uint64_t weights[5] = {p->batch, p->heads, p->len_q, p->len_kv, sizeof(float)};
    return allocate_output(&inputs->blobs[BLOB_O], "O", o) &&
           (!(p->flags & VKATTN_WRITE_LSE) || allocate_output(&inputs->blobs[BLOB_LSE], "LSE", lse)) &&
           (!(p->flags & VKATTN_WRITE_WEIGHTS) || allocate_output(&inputs->blobs[BLOB_WEIGHTS], "weights", weights));
}

unsigned inputs_o_shape(const struct inputs *inputs, uint64_t shape[4])
{
    const vkattn_problem *p = &inputs->problem;
    const bool rows_first = p->o.order == VKATTN_BTHD;
    const uint64_t whole[4] = {p->batch, rows_first ? p->len_q : p->heads, rows_first ? p->heads : p->len_q, p->dim_v};
    /* A dimension that Q's file lacks is 1; a matrix has no heads in either layout. */
    const uint64_t matrix[2] = {p->len_q, p->dim_v};
    const unsigned dims = inputs->q_dims;
    memcpy(shape, dims == 2 ? matrix : whole + (4 - dims), dims * sizeof *shape);
    return dims;
}

bool inputs_read_like_o(const char *path, const struct inputs *inputs, struct npy_array *array)
{
    uint64_t shape[4];
    const unsigned dims = inputs_o_shape(inputs, shape);
    return read_array(path, array) && (is_float(array) || wrong_type(path, array, "float16, float32 or float64")) &&
           expect_shape(path, array, dims, shape, "O's shape");
}

vkattn_tensors inputs_tensors(const struct inputs *inputs)
{
    const struct blob *blobs = inputs->blobs;
    return (vkattn_tensors){
        .q = blobs[BLOB_Q].data,
        .k = blobs[BLOB_K].data,
        .v = blobs[BLOB_V].data,
        .o = blobs[BLOB_O].data,
        .lse = blobs[BLOB_LSE].data,
        .weights = blobs[BLOB_WEIGHTS].data,
        .mask = blobs[BLOB_MASK].data,
        .bias = blobs[BLOB_BIAS].data,
        .alibi = blobs[BLOB_ALIBI].data,
        .sinks = blobs[BLOB_SINKS].data,
        .kv_lengths = blobs[BLOB_KV_LENGTHS].data,
        .q_lengths = blobs[BLOB_Q_LENGTHS].data,
        .prefix = blobs[BLOB_PREFIX].data,
        .q_segments = blobs[BLOB_Q_SEGMENTS].data,
        .kv_segments = blobs[BLOB_KV_SEGMENTS].data,
    };
}

void inputs_free(struct inputs *inputs)
{
    for (unsigned i = 0; i < BLOB_COUNT; i++)
        free(inputs->blobs[i].data);
    *inputs = (struct inputs){0};
}

/*
 * NumPy .npy files: versions 1, 2 and 3, C order, little-endian. Nothing here trusts a file: a header is parsed by a
 * grammar of its own, and memory is allocated only for bytes that are there.
 *
 * A call that fails returns false and leaves one sentence in `message` that names the file, the field and the value.
 */
#ifndef VKATTN_TOOLS_NPY_H
#define VKATTN_TOOLS_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NPY_MAX_DIMS        8u
#define NPY_MESSAGE_SIZE    1024u
#define NPY_SHAPE_TEXT_SIZE 192u

enum npy_type { NPY_F16, NPY_F32, NPY_F64, NPY_BOOL, NPY_U8, NPY_I32, NPY_I64, NPY_TYPE_COUNT };

struct npy_array {
    enum npy_type type;
    unsigned dims; /* 0: a scalar, one element */
    uint64_t shape[NPY_MAX_DIMS];
    size_t count; /* elements */
    size_t size;  /* bytes of data */
    void *data;   /* malloc'd by npy_read, never NULL there; borrowed by npy_write */
};

/* NumPy's name, "float16" and so on. */
const char *npy_type_name(enum npy_type type);
size_t npy_type_size(enum npy_type type);

/* Fill in type, shape, count and size; data stays as it is. False when the size overflows or dims > NPY_MAX_DIMS. */
bool npy_set_shape(struct npy_array *array, enum npy_type type, unsigned dims, const uint64_t *shape);

/* The shape as Python writes it, "(2, 3)"; returns `text`. */
const char *npy_shape_text(unsigned dims, const uint64_t *shape, char text[NPY_SHAPE_TEXT_SIZE]);

/* Read a regular file or a pipe. On failure *array is zeroed. */
bool npy_read(const char *path, struct npy_array *array, char message[NPY_MESSAGE_SIZE]);

/* Free the data and zero the struct. */
void npy_free(struct npy_array *array);

/* Write type, shape and data to `path`, which appears whole or not at all: written beside it, synced, renamed. A
 * symbolic link is followed; a device or a pipe is written in place. */
bool npy_write(const char *path, const struct npy_array *array, char message[NPY_MESSAGE_SIZE]);

/* Whether npy_write could begin now: for a check before long work. Leaves nothing behind. */
bool npy_writable(const char *path, char message[NPY_MESSAGE_SIZE]);

#endif

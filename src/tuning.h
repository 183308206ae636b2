/* What was measured on one device with one driver: rows of tile tables that come first, and factors of costs. It is
 * read from bytes that anybody may have written. */
#ifndef VKATTN_TUNING_H
#define VKATTN_TUNING_H

#include "kernel.h"

/* Whose measurements they are. */
struct tuning_key {
    uint32_t vendor, device, driver_id, driver_version; /* as Vulkan reports them; driver_id 0: not told */
    char name[256];                                     /* of the device */
};

/* The largest catalogue, the types of K and V, the classes of head widths, and the bytes of a file. */
enum { TUNING_KERNELS = 16, TUNING_TYPES = 3, TUNING_WIDTHS = 8, TUNING_MOST_BYTES = 1 << 16 };

/* The widest head of each class: those at which tile tables change. */
extern const uint32_t vkattn_tuning_widths[TUNING_WIDTHS];

/* Kernels are numbered as in the catalogue; addresses are 1, descriptors 0. All zero: nothing was measured. */
struct tuning {
    uint32_t tiles[TUNING_KERNELS][2][TUNING_TYPES][TUNING_WIDTHS]; /* a row, from 1; 0: the table's own order */
    uint32_t scales[TUNING_KERNELS][2];                             /* of cost, in thousandths; 0: 1000 */
};

/* Factors from a hundredth to a hundred. */
enum { TUNING_LEAST_SCALE = 10, TUNING_MOST_SCALE = 100000 };

/* Read a file for the device of `key`. VKATTN_INVALID, with a sentence: it is damaged, for another device, driver or
 * library, or holds what no device has; *tuning is then all zero. */
vkattn_status vkattn_tuning_read(const void *bytes, size_t size, const struct tuning_key *key, struct tuning *tuning);

/* Write what vkattn_tuning_read reads; returns the bytes, or 0 where `size` is too small. */
size_t vkattn_tuning_write(const struct tuning *tuning, const struct tuning_key *key, char *text, size_t size);

/* The sum in a file's last line, of all bytes before that. */
uint64_t vkattn_tuning_sum(const void *bytes, size_t size);

/* The class of a head's width. */
uint32_t vkattn_tuning_width(uint32_t dim);

/* The row to try first, from 1; 0: none. `tuning` may be NULL. */
uint32_t vkattn_tuned_tile(const struct tuning *tuning, const struct kernel *kernel, const struct problem *problem,
                           bool addresses);

/* The factor of a kernel's cost. `tuning` may be NULL. */
double vkattn_tuned_scale(const struct tuning *tuning, const struct kernel *kernel, bool addresses);

/* Whose tuning a device takes; defined beside the device. */
const struct tuning_key *vkattn_device_key(const vkattn_device *device);

#endif

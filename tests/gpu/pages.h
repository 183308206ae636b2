/* Tensors in pages that a test may take away: memory of the process, imported by VK_EXT_external_memory_host. On a
 * driver that runs on the CPU, a kernel that reads a page without access dies of SIGSEGV. */
#ifndef VKATTN_TESTS_PAGES_H
#define VKATTN_TESTS_PAGES_H

#include "gpu.h"

/* A device of its own with the extension; the instance is the context's. */
struct pages_device {
    vkattn_context *context;
    VkDevice device;
    VkQueue queue;
    vkattn_device *vkattn;
    size_t page; /* bytes; what imports are aligned to, and protection too */
};

/* Skips the test where the driver cannot import, has no addresses, or does not run on the CPU. */
struct pages_device pages_open(vkattn_context *context);
void pages_close(struct pages_device *d);

/* Whole pages of this process as a buffer. */
struct pages {
    VkBuffer buffer;
    VkDeviceMemory memory;
    VkDeviceAddress address;
    size_t size;
    char *data;
};

/* Import `size` bytes at `data`, both of whole pages. */
struct pages pages_import(const struct pages_device *d, void *data, size_t size);
void pages_free(const struct pages_device *d, struct pages *p);

/* Record a plan of the device's once, and run it `times` times. */
void pages_run(const struct pages_device *d, const vkattn_plan *plan, const vkattn_buffers *buffers,
               const vkattn_lengths *lengths, int times);

/* Address space of the process, not yet memory; fails the test when there is none. */
char *pages_reserve(size_t size);

#endif

/* A vkGetInstanceProcAddr between the library and the loader: it counts what the library calls, keeps account of what
 * it creates and destroys, and lets the n-th call that may fail return an error. */
#ifndef VKATTN_TESTS_SPY_H
#define VKATTN_TESTS_SPY_H

#include <volk.h>

#include <stdatomic.h>

struct spy {
    /* What was seen. */
    atomic_int live;       /* objects created and not destroyed */
    atomic_int fallible;   /* calls that return a VkResult */
    atomic_int commands;   /* vkCmd calls */
    atomic_int dispatches; /* of those, vkCmdDispatch */
    atomic_int pipelines;  /* vkCreateComputePipelines */
    VkPipelineCache cache; /* what the last of them was given */
    /* What to do. */
    int fail_at;        /* the fallible call, from 1, that fails; 0: none */
    VkResult result;    /* with what */
    const char *hidden; /* a function that the loader is to lack */
};

/* Only one is needed at a time, and Vulkan's functions have no user pointer. */
extern struct spy spy;

/* Forget everything. */
void spy_reset(void);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL spy_get_instance_proc_addr(VkInstance instance, const char *name);

#endif

/* Storage types on the CPU; the public vkattn_decode and vkattn_encode live in dtype.c. */
#ifndef VKATTN_DTYPE_H
#define VKATTN_DTYPE_H

#include <vkattn/reference.h>

const char *vkattn_dtype_name(vkattn_dtype type);

#endif

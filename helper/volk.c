/* volk, as its makers ship it: a source file to include. */
#include <volk.c>

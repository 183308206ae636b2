// Which work group does what: groups are numbered over batch, heads and row blocks, row blocks fastest.
#ifndef ITEM_GLSL
#define ITEM_GLSL

#include "lib/tensor.glsl"

struct Item {
    uint b, h;  // batch member, head
    uint block; // of rows
};

// `heads` of a member: query heads, or kv heads of a kernel over keys. False for the groups that only fill up the last row
// of a two-dimensional dispatch.
bool work_item(uint heads, out Item item)
{
    uint index = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (index >= push.count)
        return false;
    index += push.first;
    uint head = index / push.row_blocks;
    // Late rows see the most keys under a causal mask, early ones the fewest: in turns from both ends, any run of groups
    // is about as much work as another, also where a driver gives each core a run.
    const uint turn = index - head * push.row_blocks;
    item.block = (turn & 1) != 0 ? turn >> 1 : push.row_blocks - 1 - (turn >> 1);
    item.b = head / heads;
    item.h = head - item.b * heads;
    return true;
}

uint kv_head(Item item)
{
    return item.h / PARAMS.group;
}

#endif

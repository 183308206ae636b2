/* Attention in an application's own command buffer: plan once, then record; here three steps of decoding, in which the
 * sequence grows and nothing is planned or compiled again. */
#include <stdio.h>
#include <vkattn/helper.h>

enum { HEADS = 4, KV_HEADS = 2, CAPACITY = 64, DIM = 32 };

struct decoder {
    vkattn_context *context;
    vkattn_plan *plan;
    vkattn_mapped q, k, v, o, workspace;
    vkattn_lengths lengths;
};

static vkattn_buffer whole(const vkattn_mapped *mapped)
{
    return (vkattn_buffer){.buffer = mapped->buffer, .size = mapped->size};
}

/* Host writes before a submission are visible to it, and vkattn_run, which calls this, makes the results visible to the
 * host; elsewhere, barriers at both ends are the caller's: see vkattn_record. */
static vkattn_status record_step(void *user, VkCommandBuffer cmd)
{
    const struct decoder *d = user;
    const vkattn_buffers buffers = {
        .q = whole(&d->q), .k = whole(&d->k), .v = whole(&d->v), .o = whole(&d->o), .workspace = whole(&d->workspace)};
    return vkattn_record(d->plan, cmd, &buffers, &d->lengths);
}

static vkattn_status create(struct decoder *d)
{
    const vkattn_problem problem = {
        .heads = HEADS, .kv_heads = KV_HEADS, .len_q = 1, .len_kv = CAPACITY, .dim_qk = DIM};
    vkattn_status status = vkattn_open(NULL, &d->context);
    if (status == VKATTN_OK)
        status = vkattn_plan_create(d->context->vkattn, &problem, NULL, &d->plan);
    if (status != VKATTN_OK)
        return status;
    const struct {
        vkattn_mapped *mapped;
        VkDeviceSize size;
    } wanted[] = {{&d->q, HEADS * DIM * sizeof(float)},
                  {&d->k, KV_HEADS * CAPACITY * DIM * sizeof(float)},
                  {&d->v, KV_HEADS * CAPACITY * DIM * sizeof(float)},
                  {&d->o, HEADS * DIM * sizeof(float)},
                  {&d->workspace, vkattn_plan_workspace(d->plan).size}};
    for (size_t i = 0; status == VKATTN_OK && i < sizeof wanted / sizeof *wanted; i++)
        status = vkattn_mapped_create(d->context, wanted[i].size, wanted[i].mapped);
    return status;
}

static void destroy(struct decoder *d)
{
    if (d->context == NULL)
        return;
    vkattn_mapped *const all[] = {&d->q, &d->k, &d->v, &d->o, &d->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        vkattn_mapped_destroy(d->context, all[i]);
    vkattn_plan_destroy(d->plan);
    vkattn_close(d->context);
}

/* A new token's rows of K and V, one for each head: here value t + 1 everywhere, and K = 0, so that O is the mean. */
static void append_token(struct decoder *d, uint32_t t)
{
    float *k = d->k.data, *v = d->v.data;
    for (uint32_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < DIM; i++) {
            k[(head * CAPACITY + t) * DIM + i] = 0;
            v[(head * CAPACITY + t) * DIM + i] = (float)(t + 1);
        }
    d->lengths = (vkattn_lengths){.len_q = 1, .len_kv = t + 1};
}

static vkattn_status decode(struct decoder *d)
{
    for (uint32_t t = 0; t < 3; t++) {
        append_token(d, t);
        const vkattn_status status = vkattn_run(d->context, record_step, d, NULL);
        if (status != VKATTN_OK)
            return status;
        printf("%u keys: %g\n", t + 1, (double)((const float *)d->o.data)[0]);
    }
    return VKATTN_OK;
}

int main(void)
{
    struct decoder d = {0};
    vkattn_status status = create(&d);
    if (status == VKATTN_OK)
        status = decode(&d);
    if (status != VKATTN_OK)
        fprintf(stderr, "%s: %s\n", vkattn_status_name(status), vkattn_last_error());
    destroy(&d);
    return status != VKATTN_OK;
}

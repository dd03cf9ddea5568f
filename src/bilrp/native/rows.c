/* Sparse tangents: pushes only features that can be non-zero (see engine/executors/sparse.py).
 *
 * A tangent has rows, the features of an image that can be non-zero, sorted by position and channel. Each position has
 * its own regions, those whose receptive field contains it, and a matrix (rows x regions) of values.
 *
 *     convolve   target = sum over terms t of  diag(after_t) W_t diag(before_t) source
 *     combine    target[c, i] = sum over terms t of  factor_t[c] source_t[c at its offset, i],  c a channel
 *     gather     copy from windows (or whole images) of each region
 *     scatter    copy to windows (or whole images) of each region
 *
 * Threads take positions from an atomic counter: any number of them can make the same call. All functions return 0, or
 * 1 if memory is exhausted. Each adds the multiply-adds it does to a counter.
 *
 * C11 with the vector extensions of GCC and Clang. The second half of this file is compiled once for float and once for
 * double.
 */
#ifndef REAL

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef SOURCE_CHECKSUM
#define SOURCE_CHECKSUM 0
#endif
const uint32_t native_source_checksum = SOURCE_CHECKSUM; /* of all C files; another library is not loaded */

typedef int64_t i64;

typedef struct {
    i64 height, width, channels;
    const i64 *row_starts;    /* first row of each position, and the number of rows */
    const i64 *channel;       /* of each row */
    const i64 *region_starts; /* start of each position's regions in: */
    const i64 *regions;       /* ascending for each position */
    const i64 *offsets;       /* start of each position's matrix in: */
    void *values;
} SparseRows;

typedef struct {
    _Atomic i64 position, macs; /* the next position to compute, and the multiply-adds so far */
} Progress;

typedef struct {
    SparseRows source, target;
    i64 kernel[2], dilation[2], stride[2], padding[2];
    i64 terms;
    const void *const *weights, *const *before, *const *after; /* for each term: (outputs, kernel, inputs); factors */
    Progress *progress;
} Convolution;

typedef struct {
    SparseRows target;
    i64 terms, stride[2];
    const SparseRows *const *sources; /* for each term */
    const i64 *shift;                 /* (dy, dx) of each term: source position = target position * stride + shift */
    const void *const *factors;       /* for each term: one number for each target row, or NULL */
    Progress *progress;
} Combination;

typedef struct {
    SparseRows rows;
    const i64 *index; /* image of each region, or -1 */
    void *images;
    i64 strides[4]; /* image, channel, line, position */
    const i64 *origin; /* top and left of each image; may be NULL */
    Progress *progress;
} ImageCopy;

enum {
    MR = 6,                  /* outputs of a micro-kernel */
    MAX_UNPACKED_PANELS = 8, /* up to this many panels, weights are not packed */
    POSITIONS_PER_TASK = 16, /* positions per increment of the counter */
};

static inline i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }

static inline i64 region_count(const SparseRows *r, i64 pixel) {
    return r->region_starts[pixel + 1] - r->region_starts[pixel];
}

/* The column of each of a target position's regions in the matrix of a source position; -1 if it does not have it.
 * Returns whether they are 0, 1, ..., all of the source's. */
static int find_regions(const SparseRows *source, i64 from, const SparseRows *target, i64 to, int32_t *columns) {
    const i64 *own = source->regions + source->region_starts[from];
    const i64 *regions = target->regions + target->region_starts[to];
    i64 size = region_count(source, from), count = region_count(target, to), at = 0;
    int same = size == count;
    for (i64 i = 0; i < count; i++) {
        while (at < size && own[at] < regions[i]) at++;
        columns[i] = at < size && own[at] == regions[i] ? (int32_t)at : -1;
        same = same && columns[i] == i;
    }
    return same;
}

/* Make a buffer hold at least `needed` elements; its contents are lost. */
static int reserve(void *buffer, i64 *capacity, i64 needed, size_t each) {
    void **pointer = buffer;
    if (needed <= *capacity) return 0;
    free(*pointer);
    *pointer = malloc((size_t)needed * each);
    *capacity = *pointer ? needed : 0;
    return *pointer == NULL;
}

#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)
#define NAME(name) JOIN(name, SUFFIX)

#define REAL float
#define SUFFIX _float32
#include "rows.c"
#undef REAL
#undef SUFFIX
#define REAL double
#define SUFFIX _float64
#include "rows.c"

#else

#define LANES ((i64)(32 / sizeof(REAL)))
#define NR ((i64)(64 / sizeof(REAL))) /* regions of a micro-kernel: a panel */

typedef REAL NAME(vector) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));

/* ------------------------------------------------------------------ convolve */

/* The micro-kernel: sums[MR][NR] for the first one or two vectors of a panel. Weights are packed, MR of them for each
 * row of the panel, or read from (rows, weight_index). With one vector, even and odd rows have separate sums, so that
 * additions do not wait for each other. */
static inline __attribute__((always_inline)) void NAME(multiply_panel)(
    int vectors, const REAL *packed, const REAL *const *rows, const int32_t *weight_index, const REAL *panel,
    i64 k, REAL *sums) {
    NAME(vector) s[MR][2];
    for (int i = 0; i < MR; i++) s[i][0] = s[i][1] = (NAME(vector)){0};
    for (; vectors == 1 && k > 1; k -= 2, panel += 2 * LANES) {
        NAME(vector) left = *(const NAME(vector) *)panel, right = *(const NAME(vector) *)(panel + LANES);
        for (int i = 0; i < MR; i++) {
            s[i][0] += (rows ? rows[i][weight_index[0]] : packed[i]) * left;
            s[i][1] += (rows ? rows[i][weight_index[1]] : packed[MR + i]) * right;
        }
        if (rows) weight_index += 2;
        else packed += 2 * MR;
    }
    for (; k > 0; k--, panel += vectors * LANES) {
        NAME(vector) left = *(const NAME(vector) *)panel, right = left;
        if (vectors == 2) right = *(const NAME(vector) *)(panel + LANES);
        for (int i = 0; i < MR; i++) {
            REAL weight = rows ? rows[i][*weight_index] : packed[i];
            s[i][0] += weight * left;
            if (vectors == 2) s[i][1] += weight * right;
        }
        if (rows) weight_index++;
        else packed += MR;
    }
    for (int i = 0; i < MR; i++, sums += NR) {
        if (vectors == 1) s[i][0] += s[i][1];
        *(NAME(vector) *)sums = s[i][0];
        *(NAME(vector) *)(sums + LANES) = s[i][1];
    }
}

typedef struct {
    REAL *panels, *weights;        /* inputs of one position, for NR regions after the other; packed weights */
    int32_t *weight_index;         /* index of each input in a row of W */
    i64 *input_row;                /* row of each input */
    int32_t *columns;              /* of the target's regions at one source position */
    i64 panels_size, weights_size, weight_index_size, input_row_size, columns_size;
} NAME(Workspace);

/* Pack the rows of one source position for the regions of the target position: panels[p][at + row][one or two vectors]. */
static void NAME(pack_source)(const Convolution *job, i64 pixel, i64 target_pixel, i64 at, i64 inputs,
                              NAME(Workspace) *workspace) {
    const SparseRows *source = &job->source;
    i64 rows = source->row_starts[pixel + 1] - source->row_starts[pixel], row_length = region_count(source, pixel);
    i64 count = region_count(&job->target, target_pixel);
    find_regions(source, pixel, &job->target, target_pixel, workspace->columns);
    for (i64 p = 0; p * NR < count; p++) {
        const int32_t *columns = workspace->columns + p * NR;
        const REAL *from = (const REAL *)source->values + source->offsets[pixel];
        i64 lane_count = min_i64(count - p * NR, NR), panel_width = lane_count > LANES ? NR : LANES, copied = 0;
        REAL *to = workspace->panels + p * inputs * NR + at * panel_width;
        int32_t lanes[NR], sources[NR]; /* lanes in the panel, and the source's columns for them */
        for (i64 i = 0; i < lane_count; i++)
            if (columns[i] >= 0) lanes[copied] = (int32_t)i, sources[copied++] = columns[i];
        if (copied == NR && sources[NR - 1] - sources[0] == NR - 1) {
            for (i64 r = 0; r < rows; r++, from += row_length, to += NR)
                memcpy(to, from + sources[0], sizeof(REAL) * NR);
            continue;
        }
        for (i64 r = 0; r < rows; r++, from += row_length, to += panel_width) {
            memset(to, 0, sizeof(REAL) * LANES);
            if (panel_width > LANES) memset(to + LANES, 0, sizeof(REAL) * LANES);
            for (i64 i = 0; i < copied; i++) to[lanes[i]] = from[sources[i]];
        }
    }
}

/* Find the inputs in the field of one position, and pack their values. Returns their number, or -1. */
static i64 NAME(pack_inputs)(const Convolution *job, i64 pixel, NAME(Workspace) *workspace) {
    const SparseRows *source = &job->source, *target = &job->target;
    i64 top = pixel / target->width * job->stride[0] - job->padding[0], inputs = 0;
    i64 left = pixel % target->width * job->stride[1] - job->padding[1], count = region_count(target, pixel);
    for (int packing = 0; packing < 2; packing++) { /* count first, then pack */
        i64 at = 0;
        for (i64 k = 0; k < job->kernel[0] * job->kernel[1]; k++) {
            i64 y = top + k / job->kernel[1] * job->dilation[0], x = left + k % job->kernel[1] * job->dilation[1];
            if (y < 0 || y >= source->height || x < 0 || x >= source->width) continue;
            i64 from = y * source->width + x, first = source->row_starts[from], last = source->row_starts[from + 1];
            if (packing && first < last) NAME(pack_source)(job, from, pixel, at, inputs, workspace);
            for (i64 row = first; packing && row < last; row++) {
                workspace->weight_index[at + row - first] = (int32_t)(k * source->channels + source->channel[row]);
                workspace->input_row[at + row - first] = row;
            }
            at += last - first;
        }
        if (packing) break;
        inputs = at;
        i64 columns = (count + NR - 1) / NR * NR;
        if (reserve(&workspace->panels, &workspace->panels_size, columns * (inputs + 1), sizeof(REAL)) ||
            reserve(&workspace->weight_index, &workspace->weight_index_size, inputs + 1, sizeof(int32_t)) ||
            reserve(&workspace->input_row, &workspace->input_row_size, inputs + 1, sizeof(i64)) ||
            reserve(&workspace->columns, &workspace->columns_size, columns, sizeof(int32_t)))
            return -1;
    }
    return inputs;
}

/* Pack weights times factors, summed over terms: MR outputs for each input. */
static void NAME(pack_weights)(const Convolution *job, i64 first, i64 last, i64 inputs, NAME(Workspace) *workspace) {
    i64 length = job->kernel[0] * job->kernel[1] * job->source.channels;
    for (i64 o = first; (o - first) % MR || o < last; o++) {
        REAL *to = workspace->weights + (o - first) / MR * inputs * MR + (o - first) % MR;
        for (i64 k = 0; k < inputs; k++) to[k * MR] = 0;
        for (i64 t = 0; t < job->terms && o < last; t++) {
            const REAL *row = (const REAL *)job->weights[t] + job->target.channel[o] * length;
            const REAL *before = job->before[t], *after = job->after[t];
            REAL factor = after && job->terms > 1 ? after[o] : 1; /* a single term's is applied to the sums */
            for (i64 k = 0; k < inputs; k++)
                to[k * MR] += row[workspace->weight_index[k]] * (before ? before[workspace->input_row[k]] : 1) * factor;
        }
    }
}

/* Compute up to MR outputs of one position, from row o on, for panel p of its regions; weights are packed or NULL. */
static void NAME(compute_outputs)(const Convolution *job, i64 pixel, i64 o, i64 inputs, const REAL *packed, i64 p,
                                  const NAME(Workspace) *workspace) {
    const SparseRows *target = &job->target;
    i64 first = target->row_starts[pixel], output_count = min_i64(target->row_starts[pixel + 1] - o, MR);
    i64 row_length = region_count(target, pixel), lane_count = min_i64(row_length - p * NR, NR);
    i64 length = job->kernel[0] * job->kernel[1] * job->source.channels;
    const REAL *panel = workspace->panels + p * inputs * NR, *weights[MR], *after = job->after[0];
    REAL sums[MR * NR];
    for (i64 i = 0; i < MR && !packed; i++)
        weights[i] = (const REAL *)job->weights[0] + target->channel[i < output_count ? o + i : o] * length;
    if (packed && lane_count > LANES) NAME(multiply_panel)(2, packed, NULL, NULL, panel, inputs, sums);
    else if (packed) NAME(multiply_panel)(1, packed, NULL, NULL, panel, inputs, sums);
    else if (lane_count > LANES) NAME(multiply_panel)(2, NULL, weights, workspace->weight_index, panel, inputs, sums);
    else NAME(multiply_panel)(1, NULL, weights, workspace->weight_index, panel, inputs, sums);
    REAL *to = (REAL *)target->values + target->offsets[pixel] + (o - first) * row_length + p * NR;
    for (i64 i = 0; i < output_count; i++, to += row_length) {
        REAL factor = after && job->terms == 1 ? after[o + i] : 1;
        for (i64 j = 0; j < lane_count; j++) to[j] = factor * sums[i * NR + j];
    }
}

static int NAME(convolve_position)(const Convolution *job, i64 pixel, NAME(Workspace) *workspace) {
    i64 first = job->target.row_starts[pixel], last = job->target.row_starts[pixel + 1];
    i64 count = region_count(&job->target, pixel), panels = (count + NR - 1) / NR;
    if (first == last || !count) return 0;
    i64 inputs = NAME(pack_inputs)(job, pixel, workspace);
    if (inputs < 0) return 1;
    atomic_fetch_add(&job->progress->macs, (last - first) * inputs * count);
    const REAL *packed = NULL;
    /* For few regions, packing the weights takes longer than looking them up. */
    if (panels > MAX_UNPACKED_PANELS || job->terms > 1 || job->before[0]) {
        i64 size = (last - first + MR - 1) / MR * MR * (inputs + 1);
        if (reserve(&workspace->weights, &workspace->weights_size, size, sizeof(REAL))) return 1;
        NAME(pack_weights)(job, first, last, inputs, workspace);
        packed = workspace->weights;
    }
    for (i64 o = first; o < last; o += MR)
        for (i64 p = 0; p < panels; p++)
            NAME(compute_outputs)(job, pixel, o, inputs, packed ? packed + (o - first) * inputs : NULL, p, workspace);
    return 0;
}

int NAME(convolve)(const Convolution *job) {
    NAME(Workspace) workspace = {0};
    i64 pixels = job->target.height * job->target.width;
    int failed = 0;
    while (!failed) {
        i64 pixel = atomic_fetch_add(&job->progress->position, 1);
        if (pixel >= pixels) break;
        failed = NAME(convolve_position)(job, pixel, &workspace);
    }
    free(workspace.panels), free(workspace.weights), free(workspace.weight_index), free(workspace.input_row);
    free(workspace.columns);
    return failed;
}

/* ------------------------------------------------------------------ combine */

/* to += factor * from, for the regions of the source; columns is NULL if both have the same regions. */
static inline void NAME(add_row)(REAL *to, const REAL *from, const int32_t *columns, i64 count, REAL factor) {
    if (!columns)
        for (i64 i = 0; i < count; i++) to[i] += factor * from[i];
    else
        for (i64 i = 0; i < count; i++)
            if (columns[i] >= 0) to[i] += factor * from[columns[i]];
}

/* Add one term to the matrix of a target position: rows of the same channel at the shifted source position. */
static void NAME(add_term)(const Combination *job, i64 t, i64 pixel, REAL *out, int32_t *columns) {
    const SparseRows *target = &job->target, *source = job->sources[t];
    i64 y = pixel / target->width * job->stride[0] + job->shift[2 * t];
    i64 x = pixel % target->width * job->stride[1] + job->shift[2 * t + 1];
    if (y < 0 || y >= source->height || x < 0 || x >= source->width) return;
    i64 from = y * source->width + x, at = source->row_starts[from], end = source->row_starts[from + 1];
    i64 row_length = region_count(source, from), count = region_count(target, pixel), macs = 0;
    i64 first = target->row_starts[pixel], last = target->row_starts[pixel + 1];
    const REAL *factor = job->factors[t], *values = (const REAL *)source->values + source->offsets[from];
    int same = find_regions(source, from, target, pixel, columns);
    for (i64 row = first; row < last && at < end; row++) {
        if (factor && factor[row] == 0) continue;
        while (at < end && source->channel[at] < target->channel[row]) at++;
        if (at == end || source->channel[at] != target->channel[row]) continue;
        NAME(add_row)(out + (row - first) * count, values + (at - source->row_starts[from]) * row_length,
                      same ? NULL : columns, count, factor ? factor[row] : 1);
        macs += count;
    }
    atomic_fetch_add(&job->progress->macs, macs);
}

int NAME(combine)(const Combination *job) {
    const SparseRows *target = &job->target;
    i64 pixels = target->height * target->width, size = 0;
    int32_t *columns = NULL;
    int failed = 0;
    while (!failed) {
        i64 begin = atomic_fetch_add(&job->progress->position, POSITIONS_PER_TASK);
        if (begin >= pixels) break;
        for (i64 pixel = begin; pixel < min_i64(begin + POSITIONS_PER_TASK, pixels) && !failed; pixel++) {
            i64 rows = target->row_starts[pixel + 1] - target->row_starts[pixel];
            i64 count = region_count(target, pixel);
            if (!rows || (failed = reserve(&columns, &size, count, sizeof(int32_t)))) continue;
            REAL *out = (REAL *)target->values + target->offsets[pixel];
            memset(out, 0, sizeof(REAL) * (size_t)(rows * count));
            for (i64 t = 0; t < job->terms; t++) NAME(add_term)(job, t, pixel, out, columns);
        }
    }
    free(columns);
    return failed;
}

/* ------------------------------------------------------------------ gather and scatter */

static int NAME(copy_images)(const ImageCopy *job, int scatter) {
    const SparseRows *rows = &job->rows;
    i64 pixels = rows->height * rows->width, size = 0;
    REAL **at = NULL;
    int failed = 0;
    while (!failed) {
        i64 begin = atomic_fetch_add(&job->progress->position, POSITIONS_PER_TASK);
        if (begin >= pixels) break;
        for (i64 pixel = begin; pixel < min_i64(begin + POSITIONS_PER_TASK, pixels) && !failed; pixel++) {
            i64 count = region_count(rows, pixel), y = pixel / rows->width, x = pixel % rows->width;
            i64 first = rows->row_starts[pixel], last = rows->row_starts[pixel + 1];
            const i64 *regions = rows->regions + rows->region_starts[pixel];
            REAL *values = (REAL *)rows->values + rows->offsets[pixel];
            if (first == last || (failed = reserve(&at, &size, count, sizeof *at))) continue;
            for (i64 i = 0; i < count; i++) { /* address of this position in each region's image */
                i64 image = job->index[regions[i]];
                i64 top = image >= 0 && job->origin ? job->origin[2 * image] : 0;
                i64 left = image >= 0 && job->origin ? job->origin[2 * image + 1] : 0;
                at[i] = image < 0 ? NULL
                                  : (REAL *)job->images + image * job->strides[0] + (y - top) * job->strides[2] +
                                        (x - left) * job->strides[3];
            }
            for (i64 row = first; row < last; row++, values += count) {
                i64 channel = rows->channel[row] * job->strides[1];
                if (scatter) {
                    for (i64 i = 0; i < count; i++)
                        if (at[i]) at[i][channel] = values[i];
                } else {
                    for (i64 i = 0; i < count; i++)
                        if (at[i]) values[i] = at[i][channel];
                }
            }
        }
    }
    free(at);
    return failed;
}

int NAME(gather)(const ImageCopy *job) { return NAME(copy_images)(job, 0); }
int NAME(scatter)(const ImageCopy *job) { return NAME(copy_images)(job, 1); }

#undef LANES
#undef NR
#endif

/* Sparse tangents: the operations of `engine.sparse_torch`, but each row stores only the regions that reach it.
 *
 * A value has a row for each feature that can be non-zero, ordered by position. The rows of one position form a small
 * dense matrix (rows x regions of that position); these matrices are stored consecutively.
 *
 *     convolve   target[o, i] = sum over terms t, inputs k of  after_t[o] W_t[o, k] before_t[k] source[k, i]
 *                for LRP-gamma: after[o] = numerator[o] / max(min_denominator[o],
 *                                                          bias[o] + sum over k of  W[o, k] input[k])
 *     combine    target[r, i] = sum over terms t of  factor_t[r] source_t[row_t[r], i]
 *     pool       target[c, i] = sum over offsets o of  share_o[c] source_at_o[c, i],  c a channel
 *     gather     copy from windows (or whole images) of each region
 *     scatter    copy to whole images of each region
 *     build_row_index      features that have rows, and their indices
 *     find_block_regions   regions that overlap each block of positions
 *
 * The regions of a position include the regions of all its inputs. Threads take work from an atomic counter: any number
 * of them can make the same call. All functions return 0, or 1 if memory is exhausted (`build_row_index` and
 * `find_block_regions`: a negative number).
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
    SparseRows source, target;
    i64 kernel[2], dilation[2], stride[2], padding[2];
    i64 terms;
    const void *const *weights, *const *before, *const *after; /* for each term: (outputs, kernel, inputs); factors */
    const void *input, *bias, *numerator, *min_denominator; /* LRP-gamma with a single term; else NULL */
    const i64 *blocks;                     /* top, left, bottom, right of each */
    const i64 *block_regions, *block_ends; /* the regions of all blocks, and the end of each block's */
    i64 block_count;
    _Atomic i64 *next;
} Convolution;

typedef struct {
    SparseRows target;
    i64 terms;
    const SparseRows *const *sources;
    const i64 *const *rows; /* for each term and target row: the source row, or -1 */
    const void *const *factors;
    _Atomic i64 *next;
} Combination;

typedef struct {
    SparseRows source, target;
    i64 offsets, stride[2], padding[2];
    const i64 *offset; /* (dy, dx) of each */
    const void *shares; /* for each offset and target row */
    _Atomic i64 *next;
} Pooling;

typedef struct {
    SparseRows rows;
    const i64 *index; /* image of each region, or -1 */
    void *images;
    i64 strides[4]; /* image, channel, line, position */
    const i64 *origin; /* top and left of each image; may be NULL */
    _Atomic i64 *next;
} ImageCopy;

typedef struct {
    i64 first, last, at; /* source rows, and index of the first in the packed block */
} RowRange;

typedef struct { /* one output position of a block */
    i64 y, x, pixel, first, last; /* its rows */
    i64 inputs, range_count;      /* inputs in its receptive field: */
    RowRange *row_ranges;
    int32_t *weight_index;   /* index of each input in a row of W */
    int32_t *target_columns; /* column of each of the block's regions at this position, or -1 */
} BlockPosition;

enum {
    MR = 6,                  /* outputs of a micro-kernel */
    MAX_UNPACKED_PANELS = 8, /* up to this many panels, weights are not packed */
    POSITIONS_PER_TASK = 16, /* positions per increment of the counter */
};

static inline i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 clamp_index(i64 a, i64 size) { return a < 0 ? 0 : min_i64(a, size); }

static inline i64 region_count(const SparseRows *r, i64 pixel) {
    return r->region_starts[pixel + 1] - r->region_starts[pixel];
}

/* The column of each of `regions` (ascending) in the matrix of a position; -1 if the position does not have it. */
static void find_regions(const SparseRows *r, i64 pixel, const i64 *regions, i64 count, int32_t *region_columns) {
    const i64 *own_regions = r->regions + r->region_starts[pixel];
    i64 size = region_count(r, pixel), at = 0;
    for (i64 i = 0; i < count; i++) {
        while (at < size && own_regions[at] < regions[i]) at++;
        region_columns[i] = at < size && own_regions[at] == regions[i] ? (int32_t)at : -1;
    }
}

/* For each non-zero feature of a mask (height, width, channels): its flat index, its channel, and its flat index into
 * (channels, height, width). If channels are not contiguous, POSITIONS_PER_TASK positions of a line are packed at a
 * time. */
i64 build_row_index(const uint8_t *mask, const i64 *shape, const i64 *strides, i64 *flat, i64 *channel,
                    i64 *chw_index) {
    i64 positions = shape[0] * shape[1], channels = shape[2], row = 0;
    uint8_t *packed_mask = strides[2] == 1 ? NULL : malloc((size_t)(POSITIONS_PER_TASK * channels));
    if (strides[2] != 1 && !packed_mask) return -1;
    for (i64 y = 0; y < shape[0]; y++)
        for (i64 x = 0; x < shape[1]; x += POSITIONS_PER_TASK) {
            const uint8_t *mask_row = mask + y * strides[0] + x * strides[1];
            i64 chunk = min_i64(shape[1] - x, POSITIONS_PER_TASK), step = strides[1];
            if (packed_mask) {
                for (i64 c = 0; c < channels; c++)
                    for (i64 i = 0; i < chunk; i++)
                        packed_mask[i * channels + c] = mask_row[c * strides[2] + i * strides[1]];
                mask_row = packed_mask, step = channels;
            }
            for (i64 i = 0, at = y * shape[1] + x; i < chunk; i++, at++, mask_row += step)
                for (i64 c = 0; c < channels; c++)
                    if (mask_row[c]) {
                        flat[row] = at * channels + c;
                        channel[row] = c;
                        chw_index[row++] = c * positions + at;
                    }
        }
    free(packed_mask);
    return 0;
}

/* Square blocks of positions, and the regions whose boxes [low, high) overlap each of them. Returns the number of
 * blocks: all, or only those with a region. */
i64 find_block_regions(const i64 *low, const i64 *high, i64 regions, const i64 *size, i64 side, i64 all, i64 *boxes,
                       i64 *columns, i64 *ends) {
    i64 blocks = 0, end = 0;
    i64 *row_regions = malloc(sizeof(i64) * (size_t)(regions + 1)); /* regions that overlap a line of blocks */
    if (!row_regions) return -1;
    for (i64 top = 0; top < size[0]; top += side) {
        i64 count = 0;
        for (i64 i = 0; i < regions; i++)
            if (low[2 * i] < top + side && high[2 * i] > top) row_regions[count++] = i;
        for (i64 left = 0; left < size[1]; left += side) {
            i64 begin = end;
            for (i64 i = 0; i < count; i++)
                if (low[2 * row_regions[i] + 1] < left + side && high[2 * row_regions[i] + 1] > left)
                    columns[end++] = row_regions[i];
            if (end == begin && !all) continue;
            i64 *box = boxes + 4 * blocks;
            box[0] = top, box[1] = left, box[2] = min_i64(top + side, size[0]), box[3] = min_i64(left + side, size[1]);
            ends[blocks++] = end;
        }
    }
    free(row_regions);
    return blocks;
}

/* Whether the columns are 0, 1, ..., count - 1. */
static int is_identity(const int32_t *region_columns, i64 count) {
    for (i64 i = 0; i < count; i++)
        if (region_columns[i] != i) return 0;
    return 1;
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
    const RowRange *row_ranges, i64 count, REAL *sums) {
    NAME(vector) s[MR][2];
    for (int i = 0; i < MR; i++) s[i][0] = s[i][1] = (NAME(vector)){0};
    for (i64 r = 0; r < count; r++) {
        const REAL *b = panel + row_ranges[r].at * vectors * LANES;
        i64 k = row_ranges[r].last - row_ranges[r].first;
        for (; vectors == 1 && k > 1; k -= 2, b += 2 * LANES) {
            NAME(vector) left = *(const NAME(vector) *)b, right = *(const NAME(vector) *)(b + LANES);
            for (int i = 0; i < MR; i++) {
                s[i][0] += (rows ? rows[i][weight_index[0]] : packed[i]) * left;
                s[i][1] += (rows ? rows[i][weight_index[1]] : packed[MR + i]) * right;
            }
            if (rows) weight_index += 2;
            else packed += 2 * MR;
        }
        for (; k > 0; k--, b += vectors * LANES) {
            NAME(vector) left = *(const NAME(vector) *)b, right = left;
            if (vectors == 2) right = *(const NAME(vector) *)(b + LANES);
            for (int i = 0; i < MR; i++) {
                REAL weight = rows ? rows[i][*weight_index] : packed[i];
                s[i][0] += weight * left;
                if (vectors == 2) s[i][1] += weight * right;
            }
            if (rows) weight_index++;
            else packed += MR;
        }
    }
    for (int i = 0; i < MR; i++, sums += NR) {
        if (vectors == 1) s[i][0] += s[i][1];
        *(NAME(vector) *)sums = s[i][0];
        *(NAME(vector) *)(sums + LANES) = s[i][1];
    }
}

typedef struct {
    REAL *panels, *weights, *factors;
    int32_t *weight_index, *region_columns;
    RowRange *row_ranges;
    BlockPosition *block_positions;
    i64 *lines; /* start of each source line in the packed block */
    i64 panels_size, weights_size, factors_size, weight_index_size, region_columns_size, row_ranges_size;
    i64 block_positions_size;
} NAME(Workspace);

/* Pack all rows of one source position, for the block's regions: panels[p][at + row][one or two vectors]. The input for
 * LRP-gamma comes first, like a region. */
static void NAME(pack_source)(const Convolution *job, i64 pixel, i64 at, const i64 *regions, i64 count, i64 size,
                              NAME(Workspace) *workspace) {
    const SparseRows *source = &job->source;
    i64 rows = source->row_starts[pixel + 1] - source->row_starts[pixel], row_length = region_count(source, pixel);
    if (!rows) return;
    i64 lead = job->input != NULL;
    find_regions(source, pixel, regions, count - lead, workspace->region_columns + lead);
    const REAL *values = (const REAL *)source->values + source->offsets[pixel];
    const REAL *input = lead ? (const REAL *)job->input + source->row_starts[pixel] : NULL;
    for (i64 p = 0; p * NR < count; p++, input = NULL) {
        const int32_t *region_columns = workspace->region_columns + p * NR;
        const REAL *from = values;
        i64 lane_count = min_i64(count - p * NR, NR), panel_width = lane_count > LANES ? NR : LANES, copied = 0;
        REAL *to = workspace->panels + p * size * NR + at * panel_width;
        int32_t lanes[NR], columns[NR]; /* source columns, and their lanes in the panel */
        for (i64 i = input != NULL; i < lane_count; i++)
            if (region_columns[i] >= 0) lanes[copied] = (int32_t)i, columns[copied++] = region_columns[i];
        if (copied == NR && columns[NR - 1] - columns[0] == NR - 1) {
            for (i64 r = 0; r < rows; r++, from += row_length, to += NR)
                memcpy(to, from + columns[0], sizeof(REAL) * NR);
            continue;
        }
        for (i64 r = 0; r < rows; r++, from += row_length, to += panel_width) {
            memset(to, 0, sizeof(REAL) * LANES);
            if (panel_width > LANES) memset(to + LANES, 0, sizeof(REAL) * LANES);
            if (input) to[0] = input[r];
            for (i64 i = 0; i < copied; i++) to[lanes[i]] = from[columns[i]];
        }
    }
}

/* Pack weights times factors, summed over terms: MR outputs for each input. */
static void NAME(pack_weights)(const Convolution *job, const BlockPosition *position, REAL *weights) {
    i64 length = job->kernel[0] * job->kernel[1] * job->source.channels, inputs = position->inputs;
    const int32_t *weight_index = position->weight_index;
    for (i64 o = position->first; (o - position->first) % MR || o < position->last; o++) {
        REAL *to = weights + (o - position->first) / MR * inputs * MR + (o - position->first) % MR;
        if (o >= position->last) {
            for (i64 k = 0; k < inputs; k++) to[k * MR] = 0;
            continue;
        }
        for (i64 t = 0; t < job->terms; t++) {
            const REAL *row = (const REAL *)job->weights[t] + job->target.channel[o] * length;
            const REAL *before = job->before[t], *after = job->after[t];
            REAL factor = after && job->terms > 1 ? after[o] : 1; /* a single term's is applied to the sums */
            if (!before && job->terms == 1) {
                for (i64 k = 0; k < inputs; k++) to[k * MR] = row[weight_index[k]];
                continue;
            }
            for (i64 r = 0, k = 0; r < position->range_count; r++)
                for (i64 i = position->row_ranges[r].first; i < position->row_ranges[r].last; i++, k++) {
                    REAL part = row[weight_index[k]] * (before ? before[i] : 1) * factor;
                    to[k * MR] = t ? to[k * MR] + part : part;
                }
        }
    }
}

/* Find the inputs of one position: ranges of source rows, and their indices in a row of W. */
static void NAME(find_inputs)(const Convolution *job, BlockPosition *position, i64 top, i64 left, const i64 *lines) {
    i64 kernel_width = job->kernel[1], width = job->source.width;
    i64 step = job->dilation[1] == 1 ? kernel_width : 1; /* adjacent pixels form one range */
    position->inputs = position->range_count = 0;
    for (i64 dy = 0; dy < job->kernel[0]; dy++) {
        i64 line = position->y * job->stride[0] - job->padding[0] + dy * job->dilation[0];
        if (line < 0 || line >= job->source.height) continue;
        const i64 *row_starts = job->source.row_starts + line * width;
        for (i64 dx = 0; dx < kernel_width; dx += step) {
            i64 pixel = position->x * job->stride[1] - job->padding[1] + dx * job->dilation[1];
            i64 low = clamp_index(pixel, width), high = clamp_index(pixel + step, width);
            RowRange row_range = {row_starts[low], row_starts[high],
                                  lines[line - top] + row_starts[low] - row_starts[left]};
            if (row_range.first == row_range.last) continue;
            for (i64 at = low; at < high; at++) {
                i64 begin = (dy * kernel_width + dx + at - pixel) * job->source.channels;
                for (i64 row = row_starts[at]; row < row_starts[at + 1]; row++)
                    position->weight_index[position->inputs++] = (int32_t)(begin + job->source.channel[row]);
            }
            position->row_ranges[position->range_count++] = row_range;
        }
    }
}

/* Compute up to MR outputs of one position, from row o on, for one panel of the block's regions. */
static void NAME(compute_outputs)(const Convolution *job, const BlockPosition *position, i64 o, const REAL *packed,
                                  const REAL *panel, i64 p, i64 count, REAL *factors) {
    const SparseRows *target = &job->target;
    i64 output_count = min_i64(position->last - o, MR), lane_count = min_i64(count - p * NR, NR);
    i64 row_length = region_count(target, position->pixel);
    const int32_t *column = position->target_columns + p * NR;
    int is_contiguous = column[0] >= 0, any = job->input && p == 0;
    for (i64 i = 0; i < lane_count; i++) {
        is_contiguous = is_contiguous && column[i] == column[0] + i;
        any = any || column[i] >= 0;
    }
    if (!any) return;
    REAL sums[MR * NR];
    if (packed) {
        if (lane_count > LANES)
            NAME(multiply_panel)(2, packed, NULL, NULL, panel, position->row_ranges, position->range_count, sums);
        else
            NAME(multiply_panel)(1, packed, NULL, NULL, panel, position->row_ranges, position->range_count, sums);
    } else {
        const REAL *rows[MR];
        i64 length = job->kernel[0] * job->kernel[1] * job->source.channels;
        for (i64 i = 0; i < MR; i++)
            rows[i] = (const REAL *)job->weights[0] + target->channel[i < output_count ? o + i : o] * length;
        if (lane_count > LANES)
            NAME(multiply_panel)(2, NULL, rows, position->weight_index, panel, position->row_ranges,
                                 position->range_count, sums);
        else
            NAME(multiply_panel)(1, NULL, rows, position->weight_index, panel, position->row_ranges,
                                 position->range_count, sums);
    }
    if (job->input && p == 0)
        for (i64 i = 0; i < output_count; i++) {
            REAL total = sums[i * NR] + ((const REAL *)job->bias)[o + i];
            REAL floor = ((const REAL *)job->min_denominator)[o + i];
            factors[i] = ((const REAL *)job->numerator)[o + i] / (total < floor ? floor : total);
        }
    const REAL *after = job->terms == 1 ? job->after[0] : NULL;
    REAL *to = (REAL *)target->values + target->offsets[position->pixel] + (o - position->first) * row_length;
    for (i64 i = 0; i < output_count; i++, to += row_length) {
        REAL factor = job->input ? factors[i] : after ? after[o + i] : 1;
        const REAL *from = sums + i * NR;
        if (is_contiguous)
            for (i64 j = 0; j < lane_count; j++) to[column[0] + j] = factor * from[j];
        else
            for (i64 j = 0; j < lane_count; j++)
                if (column[j] >= 0) to[column[j]] = factor * from[j];
    }
}

/* Compute all outputs of one position for many regions: weights are packed once and used by all panels. */
static int NAME(convolve_packed)(const Convolution *job, const BlockPosition *position, i64 count, i64 size,
                                 NAME(Workspace) *workspace) {
    i64 rows = (position->last - position->first + MR - 1) / MR * MR;
    if (reserve(&workspace->weights, &workspace->weights_size, rows * (position->inputs + 1), sizeof(REAL)) ||
        reserve(&workspace->factors, &workspace->factors_size, rows, sizeof(REAL)))
        return 1;
    NAME(pack_weights)(job, position, workspace->weights);
    for (i64 p = 0; p * NR < count; p++)
        for (i64 o = 0; position->first + o < position->last; o += MR)
            NAME(compute_outputs)(job, position, position->first + o, workspace->weights + o * position->inputs,
                                  workspace->panels + p * size * NR, p, count, workspace->factors + o);
    return 0;
}

/* Compute all outputs of all positions for few regions, MR of each position in turn: their weights stay in cache. */
static void NAME(convolve_unpacked)(const Convolution *job, const BlockPosition *block_positions, i64 number, i64 count,
                                    i64 size, NAME(Workspace) *workspace) {
    REAL factors[MR];
    int left = 1;
    for (i64 o = 0; left; o += MR) {
        left = 0;
        for (const BlockPosition *position = block_positions; position < block_positions + number; position++) {
            if (position->first + o >= position->last) continue;
            left = 1;
            for (i64 p = 0; p * NR < count; p++)
                NAME(compute_outputs)(job, position, position->first + o, NULL, workspace->panels + p * size * NR, p,
                                      count, factors);
        }
    }
}

/* Find the positions of a block that have outputs, and the inputs of each. Returns their number, or -1. */
static int NAME(plan_block)(const Convolution *job, const i64 *box, i64 top, i64 left, const i64 *regions, i64 count,
                            i64 size, NAME(Workspace) *workspace) {
    const SparseRows *target = &job->target;
    i64 max_positions = (box[2] - box[0]) * (box[3] - box[1]), lead = job->input != NULL, position_count = 0;
    i64 columns = (count + NR - 1) / NR * NR, kernel = job->kernel[0] * job->kernel[1];
    if (reserve(&workspace->block_positions, &workspace->block_positions_size, max_positions, sizeof(BlockPosition)) ||
        reserve(&workspace->row_ranges, &workspace->row_ranges_size, max_positions * kernel, sizeof(RowRange)) ||
        reserve(&workspace->weight_index, &workspace->weight_index_size, max_positions * size, sizeof(int32_t)) ||
        reserve(&workspace->region_columns, &workspace->region_columns_size, (max_positions + 1) * columns,
                sizeof(int32_t)))
        return -1;
    for (i64 y = box[0]; y < box[2]; y++)
        for (i64 x = box[1]; x < box[3]; x++) {
            i64 pixel = y * target->width + x, row_length = region_count(target, pixel);
            const i64 *own_regions = target->regions + target->region_starts[pixel];
            BlockPosition position = {
                .y = y,
                .x = x,
                .pixel = pixel,
                .first = target->row_starts[pixel],
                .last = target->row_starts[pixel + 1],
                .row_ranges = workspace->row_ranges + position_count * kernel,
                .weight_index = workspace->weight_index + position_count * size,
                .target_columns = workspace->region_columns + (position_count + 1) * columns,
            };
            if (position.first == position.last || !row_length) continue;
            NAME(find_inputs)(job, &position, top, left, workspace->lines);
            if (lead) position.target_columns[0] = -1;
            for (i64 i = lead, at = 0; i < count; i++)
                position.target_columns[i] =
                    at < row_length && own_regions[at] == regions[i - lead] ? (int32_t)at++ : -1;
            workspace->block_positions[position_count++] = position;
        }
    return (int)position_count;
}

static int NAME(convolve_block)(const Convolution *job, i64 number, NAME(Workspace) *workspace) {
    const i64 *box = job->blocks + 4 * number, begin = number ? job->block_ends[number - 1] : 0;
    i64 count = job->block_ends[number] - begin + (job->input != NULL), low[2], high[2], size = 0;
    for (int axis = 0; axis < 2; axis++) { /* receptive field of the block */
        i64 extent = axis ? job->source.width : job->source.height;
        i64 last = (box[2 + axis] - 1) * job->stride[axis] + (job->kernel[axis] - 1) * job->dilation[axis] + 1;
        low[axis] = clamp_index(box[axis] * job->stride[axis] - job->padding[axis], extent);
        high[axis] = clamp_index(last - job->padding[axis], extent);
    }
    for (i64 y = low[0]; y < high[0]; y++) {
        const i64 *row_starts = job->source.row_starts + y * job->source.width;
        workspace->lines[y - low[0]] = size;
        size += row_starts[high[1]] - row_starts[low[1]];
    }
    i64 panels = (count + NR - 1) / NR;
    const i64 *regions = job->block_regions + begin;
    if (reserve(&workspace->panels, &workspace->panels_size, panels * size * NR, sizeof(REAL))) return 1;
    int position_count = NAME(plan_block)(job, box, low[0], low[1], regions, count, size, workspace);
    if (position_count <= 0) return position_count < 0;
    for (i64 y = low[0], at = 0; y < high[0]; y++)
        for (i64 pixel = y * job->source.width + low[1]; pixel < y * job->source.width + high[1]; pixel++) {
            NAME(pack_source)(job, pixel, at, regions, count, size, workspace);
            at += job->source.row_starts[pixel + 1] - job->source.row_starts[pixel];
        }
    if (panels <= MAX_UNPACKED_PANELS && job->terms == 1 && !job->before[0]) {
        NAME(convolve_unpacked)(job, workspace->block_positions, position_count, count, size, workspace);
        return 0;
    }
    for (i64 i = 0; i < position_count; i++)
        if (NAME(convolve_packed)(job, workspace->block_positions + i, count, size, workspace)) return 1;
    return 0;
}

int NAME(convolve)(const Convolution *job) {
    NAME(Workspace) workspace = {0};
    workspace.lines = malloc(sizeof(i64) * (size_t)(job->source.height + 1));
    int failed = !workspace.lines;
    while (!failed) {
        i64 number = atomic_fetch_add(job->next, 1);
        if (number >= job->block_count) break;
        failed = NAME(convolve_block)(job, number, &workspace);
    }
    free(workspace.panels), free(workspace.weights), free(workspace.factors), free(workspace.weight_index);
    free(workspace.region_columns), free(workspace.row_ranges), free(workspace.block_positions), free(workspace.lines);
    return failed;
}

/* ------------------------------------------------------------------ combine */

/* to = (accumulate ? to : 0) + factor * from, for the regions of the source. */
static inline void NAME(add_row)(REAL *to, const REAL *from, const int32_t *region_columns, i64 count, REAL factor,
                                 int accumulate) {
    if (!region_columns && accumulate)
        for (i64 i = 0; i < count; i++) to[i] += factor * from[i];
    else if (!region_columns)
        for (i64 i = 0; i < count; i++) to[i] = factor * from[i];
    else
        for (i64 i = 0; i < count; i++) {
            REAL part = region_columns[i] >= 0 ? factor * from[region_columns[i]] : 0;
            to[i] = accumulate ? to[i] + part : part;
        }
}

int NAME(combine)(const Combination *job) {
    const SparseRows *target = &job->target;
    i64 pixels = target->height * target->width, size = 0, *last = malloc(sizeof(i64) * (size_t)job->terms);
    int32_t *region_columns = NULL;
    int *same = malloc(sizeof(int) * (size_t)job->terms), failed = !last || !same;
    for (i64 begin = 0; !failed;) {
        begin = atomic_fetch_add(job->next, POSITIONS_PER_TASK);
        if (begin >= pixels) break;
        for (i64 pixel = begin; pixel < min_i64(begin + POSITIONS_PER_TASK, pixels) && !failed; pixel++) {
            i64 count = region_count(target, pixel);
            const i64 *own_regions = target->regions + target->region_starts[pixel];
            failed = reserve(&region_columns, &size, job->terms * count, sizeof(int32_t));
            for (i64 t = 0; t < job->terms; t++) last[t] = -1;
            REAL *to = (REAL *)target->values + target->offsets[pixel];
            for (i64 row = target->row_starts[pixel]; !failed && row < target->row_starts[pixel + 1];
                 row++, to += count) {
                int accumulate = 0;
                for (i64 t = 0; t < job->terms; t++) {
                    const SparseRows *source = job->sources[t];
                    i64 from = job->rows[t][row], source_pixel = last[t];
                    if (from < 0) continue;
                    /* rows of one position usually come from one position */
                    if (source_pixel < 0 || from < source->row_starts[source_pixel] ||
                        from >= source->row_starts[source_pixel + 1]) {
                        i64 low = 0, high = source->height * source->width;
                        while (high - low > 1) {
                            i64 middle = (low + high) / 2;
                            if (source->row_starts[middle] <= from) low = middle;
                            else high = middle;
                        }
                        last[t] = source_pixel = low;
                        find_regions(source, source_pixel, own_regions, count, region_columns + t * count);
                        same[t] = region_count(source, source_pixel) == count &&
                                  is_identity(region_columns + t * count, count);
                    }
                    const REAL *values = (const REAL *)source->values + source->offsets[source_pixel];
                    NAME(add_row)(to,
                                  values + (from - source->row_starts[source_pixel]) *
                                               region_count(source, source_pixel),
                                  same[t] ? NULL : region_columns + t * count, count,
                                  job->factors[t] ? ((const REAL *)job->factors[t])[row] : 1, accumulate);
                    accumulate = 1;
                }
                if (!accumulate) memset(to, 0, sizeof(REAL) * (size_t)count);
            }
        }
    }
    free(region_columns), free(last), free(same);
    return failed;
}

/* ------------------------------------------------------------------ pool */

int NAME(pool)(const Pooling *job) {
    const SparseRows *target = &job->target, *source = &job->source;
    i64 pixels = target->height * target->width, rows = target->row_starts[pixels], size = 0;
    int32_t *region_columns = NULL;
    int failed = 0;
    while (!failed) {
        i64 begin = atomic_fetch_add(job->next, POSITIONS_PER_TASK);
        if (begin >= pixels) break;
        for (i64 pixel = begin; pixel < min_i64(begin + POSITIONS_PER_TASK, pixels) && !failed; pixel++) {
            i64 first = target->row_starts[pixel], last = target->row_starts[pixel + 1];
            i64 count = region_count(target, pixel);
            if (first == last || (failed = reserve(&region_columns, &size, count, sizeof(int32_t)))) continue;
            REAL *out = (REAL *)target->values + target->offsets[pixel];
            memset(out, 0, sizeof(REAL) * (size_t)((last - first) * count));
            for (i64 o = 0; o < job->offsets; o++) {
                i64 y = pixel / target->width * job->stride[0] - job->padding[0] + job->offset[2 * o];
                i64 x = pixel % target->width * job->stride[1] - job->padding[1] + job->offset[2 * o + 1];
                if (y < 0 || y >= source->height || x < 0 || x >= source->width) continue;
                i64 source_pixel = y * source->width + x, from = source->row_starts[source_pixel];
                i64 end = source->row_starts[source_pixel + 1], row_length = region_count(source, source_pixel);
                const REAL *share = (const REAL *)job->shares + o * rows;
                const REAL *values = (const REAL *)source->values + source->offsets[source_pixel];
                find_regions(source, source_pixel, target->regions + target->region_starts[pixel], count,
                             region_columns);
                int same = row_length == count && is_identity(region_columns, count);
                for (i64 row = first, at = from; row < last; row++) {
                    if (share[row] == 0) continue;
                    while (at < end && source->channel[at] < target->channel[row]) at++;
                    if (at == end || source->channel[at] != target->channel[row]) continue;
                    NAME(add_row)(out + (row - first) * count, values + (at - from) * row_length,
                                  same ? NULL : region_columns, count, share[row], 1);
                }
            }
        }
    }
    free(region_columns);
    return failed;
}

/* ------------------------------------------------------------------ gather and scatter */

static int NAME(copy_images)(const ImageCopy *job, int scatter) {
    const SparseRows *rows = &job->rows;
    i64 pixels = rows->height * rows->width, size = 0;
    REAL **at = NULL;
    int failed = 0;
    while (!failed) {
        i64 begin = atomic_fetch_add(job->next, POSITIONS_PER_TASK);
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

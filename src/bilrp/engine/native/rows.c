/* Convolution on active rows, in one call: what `engine.maps.products` does position by position in torch.
 *
 *     target[o, i] = sum over terms t and inputs k in reach of  after_t[o] W_t[o, k] before_t[k] source[k, i]
 *
 * for the active outputs o of each position, the active inputs k it looks at, and the columns (regions) i that reach its
 * block. Blocks are handed out by a counter, so that any number of threads can make the same call.
 *
 * Plain C with vectors of GCC and Clang; this file is compiled once for each kind of number (see the end).
 */
#ifndef REAL

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t whole;

typedef struct {
    whole height, width, channels; /* of the source */
    whole across;                  /* positions on a line of the target */
    whole kernel[2], dilation[2], stride[2], padding[2];
    whole terms;
    const void *const *weights, *const *before, *const *after; /* one for each term; factors may be absent */
    const whole *starts, *along;            /* of the source: first row of each position; x * channels + channel */
    const whole *target_starts, *target_channel;
    const void *source;
    void *target;
    whole columns;                          /* of both matrices */
    const whole *blocks;                     /* top, left, bottom, right of each */
    const whole *block_columns, *block_ends;  /* the columns of all blocks, and where each block's end */
    whole block_count;
    _Atomic whole *next;
} Work;

typedef struct {
    whole first, last, at; /* rows of the source, and where the first of them lies in the packed block */
} Run;

#ifndef SOURCE
#define SOURCE 0
#endif
const uint32_t rows_source = SOURCE; /* a checksum of this file: a library of another one is not used */

enum { HIGH = 6, FEW = 4 }; /* outputs at once; panels up to which weights are read where they are */

/* [low, high) of the source that positions [first, last) of the target look at, on one axis. */
static void field(const Work *w, int axis, whole first, whole last, whole size, whole *low, whole *high) {
    whole begin = first * w->stride[axis] - w->padding[axis];
    whole end = (last - 1) * w->stride[axis] - w->padding[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1;
    *low = begin < 0 ? 0 : begin < size ? begin : size;
    *high = end < *low ? *low : end < size ? end : size;
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

#define LANES (32 / sizeof(REAL))
#define WIDE (64 / sizeof(REAL)) /* columns at once: a panel */

typedef REAL NAME(vector) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));

/* sums[HIGH][WIDE] of weights that lie packed, HIGH of them for each row of the panel. */
static inline void NAME(packed)(const REAL *weights, const REAL *panel, const Run *runs, whole count, REAL *sums) {
    NAME(vector) s[HIGH][2];
    memset(s, 0, sizeof s);
    for (whole r = 0; r < count; r++) {
        const REAL *b = panel + runs[r].at * WIDE;
        for (whole k = runs[r].last - runs[r].first; k > 0; k--, b += WIDE, weights += HIGH) {
            NAME(vector) left = *(const NAME(vector) *)b, right = *(const NAME(vector) *)(b + LANES);
            for (int i = 0; i < HIGH; i++) {
                s[i][0] += weights[i] * left;
                s[i][1] += weights[i] * right;
            }
        }
    }
    memcpy(sums, s, sizeof s);
}

/* The same with weights that are read where they are: `rows` of W, at `places`. */
static inline void NAME(direct)(const REAL *const *rows, const int32_t *places, const REAL *panel, const Run *runs,
                                whole count, REAL *sums) {
    NAME(vector) s[HIGH][2];
    memset(s, 0, sizeof s);
    for (whole r = 0; r < count; r++) {
        const REAL *b = panel + runs[r].at * WIDE;
        for (whole k = runs[r].last - runs[r].first; k > 0; k--, b += WIDE, places++) {
            NAME(vector) left = *(const NAME(vector) *)b, right = *(const NAME(vector) *)(b + LANES);
            for (int i = 0; i < HIGH; i++) {
                REAL weight = rows[i][*places];
                s[i][0] += weight * left;
                s[i][1] += weight * right;
            }
        }
    }
    memcpy(sums, s, sizeof s);
}

/* Rows [first, last) of the source, cut to the block's columns, panel by panel: panels[p][at + row][WIDE]. */
static void NAME(pack_source)(const Work *w, whole first, whole last, whole at, const whole *columns, whole count,
                              whole size, REAL *panels) {
    for (whole row = first; row < last; row++, at++) {
        const REAL *from = (const REAL *)w->source + row * w->columns;
        for (whole p = 0; p * (whole)WIDE < count; p++) {
            const whole *chosen = columns + p * WIDE;
            REAL *to = panels + (p * size + at) * WIDE;
            whole left = count - p * WIDE < (whole)WIDE ? count - p * WIDE : (whole)WIDE;
            if (left == (whole)WIDE && chosen[WIDE - 1] - chosen[0] == (whole)WIDE - 1) {
                memcpy(to, from + chosen[0], sizeof(REAL) * WIDE);
                continue;
            }
            for (whole i = 0; i < (whole)WIDE; i++) to[i] = i < left ? from[chosen[i]] : 0;
        }
    }
}

/* Weights of all terms and their factors, HIGH outputs beside each other for each input in reach. */
static void NAME(pack_weights)(const Work *w, whole first, whole last, const int32_t *places, const Run *runs,
                               whole count, whole inputs, REAL *packed) {
    whole length = w->kernel[0] * w->kernel[1] * w->channels;
    whole rounded = (last - first + HIGH - 1) / HIGH * HIGH;
    for (whole o = 0; o < rounded; o++) {
        REAL *to = packed + o / HIGH * inputs * HIGH + o % HIGH;
        whole output = first + o;
        if (output >= last) {
            for (whole k = 0; k < inputs; k++) to[k * HIGH] = 0;
            continue;
        }
        for (whole t = 0; t < w->terms; t++) {
            const REAL *row = (const REAL *)w->weights[t] + w->target_channel[output] * length;
            const REAL *before = w->before[t], *after = w->after[t];
            REAL factor = after && w->terms > 1 ? after[output] : 1;
            whole k = 0;
            if (!before && w->terms == 1) {
                for (; k < inputs; k++) to[k * HIGH] = row[places[k]];
                continue;
            }
            for (whole r = 0; r < count; r++)
                for (whole i = runs[r].first; i < runs[r].last; i++, k++) {
                    REAL part = row[places[k]] * (before ? before[i] : 1) * factor;
                    to[k * HIGH] = t ? to[k * HIGH] + part : part;
                }
        }
    }
}

/* One row of the target at the columns of a panel. */
static inline void NAME(put)(REAL *to, const REAL *sums, REAL factor, const whole *columns, whole count) {
    if (columns[count - 1] - columns[0] == count - 1)
        for (whole i = 0; i < count; i++) to[columns[0] + i] = factor * sums[i];
    else
        for (whole i = 0; i < count; i++) to[columns[i]] = factor * sums[i];
}

typedef struct {
    REAL *panels, *weights;
    int32_t *places;
    Run *runs;
    whole *lines; /* where each line of the source begins in the packed block */
    whole panels_size, weights_size, places_size;
} NAME(Room);

/* At least so much room; what was there is lost. */
static int NAME(grow)(void **room, whole *have, whole want, size_t each) {
    if (want <= *have) return 0;
    free(*room);
    *room = malloc((size_t)want * each);
    *have = *room ? want : 0;
    return *room == NULL;
}

/* All outputs of one position. */
static int NAME(position)(const Work *w, whole y, whole x, whole top, whole left, const whole *columns, whole count,
                          whole size, NAME(Room) *room) {
    whole here = y * w->across + x, first = w->target_starts[here], last = w->target_starts[here + 1];
    REAL *target = w->target;
    if (first == last) return 0;
    if (count < w->columns) memset(target + first * w->columns, 0, sizeof(REAL) * (last - first) * w->columns);
    whole runs = 0, inputs = 0, wide = w->kernel[1];
    for (whole dy = 0; dy < w->kernel[0]; dy++) {
        whole line = y * w->stride[0] - w->padding[0] + dy * w->dilation[0];
        if (line < 0 || line >= w->height) continue;
        const whole *starts = w->starts + line * w->width;
        whole begin = x * w->stride[1] - w->padding[1];
        whole step = w->dilation[1] == 1 ? wide : 1; /* neighbours under a line of the kernel are one run */
        for (whole dx = 0; dx < wide; dx += step) {
            whole place = begin + dx * w->dilation[1];
            whole low = place < 0 ? 0 : place < w->width ? place : w->width;
            whole high = place + step < 0 ? 0 : place + step < w->width ? place + step : w->width;
            Run run = {starts[low], starts[high], room->lines[line - top] + starts[low] - starts[left]};
            if (run.first >= run.last) continue;
            whole shift = (dy * wide + dx - place) * w->channels;
            for (whole row = run.first; row < run.last; row++)
                room->places[inputs++] = (int32_t)(w->along[row] + shift);
            room->runs[runs++] = run;
        }
    }
    whole panels = (count + WIDE - 1) / WIDE, length = w->kernel[0] * w->kernel[1] * w->channels;
    int pack = panels > FEW || w->terms > 1 || w->before[0];
    if (pack) {
        whole rounded = (last - first + HIGH - 1) / HIGH * HIGH;
        if (NAME(grow)((void **)&room->weights, &room->weights_size, rounded * inputs, sizeof(REAL))) return 1;
        NAME(pack_weights)(w, first, last, room->places, room->runs, runs, inputs, room->weights);
    }
    const REAL *after = w->terms == 1 ? w->after[0] : NULL;
    REAL sums[HIGH * WIDE];
    for (whole p = 0; p < panels; p++) {
        const REAL *panel = room->panels + p * size * WIDE;
        whole some = count - p * WIDE < (whole)WIDE ? count - p * WIDE : (whole)WIDE;
        for (whole o = first; o < last; o += HIGH) {
            whole most = last - o < HIGH ? last - o : HIGH;
            if (pack) {
                NAME(packed)(room->weights + (o - first) * inputs, panel, room->runs, runs, sums);
            } else {
                const REAL *rows[HIGH];
                for (whole i = 0; i < HIGH; i++)
                    rows[i] = (const REAL *)w->weights[0] + w->target_channel[i < most ? o + i : o] * length;
                NAME(direct)(rows, room->places, panel, room->runs, runs, sums);
            }
            for (whole i = 0; i < most; i++)
                NAME(put)(target + (o + i) * w->columns, sums + i * WIDE, after ? after[o + i] : 1,
                          columns + p * WIDE, some);
        }
    }
    return 0;
}

static int NAME(block)(const Work *w, whole number, NAME(Room) *room) {
    const whole *box = w->blocks + 4 * number;
    whole begin = number ? w->block_ends[number - 1] : 0, count = w->block_ends[number] - begin;
    const whole *columns = w->block_columns + begin;
    whole top, bottom, left, right, size = 0;
    field(w, 0, box[0], box[2], w->height, &top, &bottom);
    field(w, 1, box[1], box[3], w->width, &left, &right);
    for (whole y = top; y < bottom; y++) {
        const whole *starts = w->starts + y * w->width;
        room->lines[y - top] = size;
        size += starts[right] - starts[left];
    }
    whole panels = (count + WIDE - 1) / WIDE;
    if (NAME(grow)((void **)&room->panels, &room->panels_size, panels * size * WIDE, sizeof(REAL))) return 1;
    if (NAME(grow)((void **)&room->places, &room->places_size, size, sizeof(int32_t))) return 1;
    for (whole y = top; y < bottom; y++) {
        const whole *starts = w->starts + y * w->width;
        NAME(pack_source)(w, starts[left], starts[right], room->lines[y - top], columns, count, size, room->panels);
    }
    for (whole y = box[0]; y < box[2]; y++)
        for (whole x = box[1]; x < box[3]; x++)
            if (NAME(position)(w, y, x, top, left, columns, count, size, room)) return 1;
    return 0;
}

/* Blocks until there are none; 0, or 1 where memory ran out. */
int NAME(convolve)(const Work *w) {
    NAME(Room) room = {0};
    room.lines = malloc(sizeof(whole) * (size_t)(w->height + 1));
    room.runs = malloc(sizeof(Run) * (size_t)(w->kernel[0] * w->kernel[1]));
    int failed = !room.lines || !room.runs;
    while (!failed) {
        whole number = atomic_fetch_add(w->next, 1);
        if (number >= w->block_count) break;
        failed = NAME(block)(w, number, &room);
    }
    free(room.panels), free(room.weights), free(room.places), free(room.runs), free(room.lines);
    return failed;
}

#undef LANES
#undef WIDE
#endif

/* Active rows in native code: what `engine.matrix` does in torch, but each row holds only the regions that reach it.
 *
 * A value has a row for each feature that can be non-zero, position by position. All rows of one position are a small
 * matrix (rows x regions), and these lie one after another. A region's number is its column.
 *
 *     convolve   target[o, i] = sum over terms t, inputs k in reach of  after_t[o] W_t[o, k] before_t[k] source[k, i]
 *                of a ratio: after[o] = counted[o] / max(least[o], bias[o] + sum over k of  W[o, k] input[k])
 *     combine    target[r, i] = sum over terms t of  factor_t[r] source_t[row_t[r], i]
 *     pool       target[c, i] = sum over offsets o of  share_o[c] source_at_o[c, i],  c a channel
 *     collect    from windows (or whole images) of each region
 *     spread     to whole images of each region
 *     lay        which features have rows, and where
 *
 * Regions that reach the inputs of a position are among those that reach it. Work is handed out by a counter, so that any
 * number of threads can make the same call. All return 0, or 1 where memory ran out (`lay` and `touch`: a number below 0).
 *
 * C11 with the vectors of GCC and Clang. The second half of this file is compiled once for each kind of number.
 */
#ifndef REAL

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef SOURCE
#define SOURCE 0
#endif
const uint32_t native_source = SOURCE; /* a checksum of all files: a library of others is not used */

typedef int64_t whole;

typedef struct {
    whole height, width, channels;
    const whole *starts;         /* first row of each position, and the number of rows */
    const whole *channel;        /* of each row */
    const whole *region_starts;  /* where each position's regions begin in: */
    const whole *regions;        /* in ascending order for each position */
    const whole *offsets;        /* where each position's numbers begin in: */
    void *numbers;
} Rows;

typedef struct {
    Rows source, target;
    whole kernel[2], dilation[2], stride[2], padding[2];
    whole terms;
    const void *const *weights, *const *before, *const *after; /* of each term: (outputs, kernel, inputs); factors */
    const void *input, *bias, *counted, *least; /* of a ratio behind a single term; absent where there is none */
    const whole *blocks;                      /* top, left, bottom, right of each */
    const whole *block_regions, *block_ends;  /* the regions of all blocks, and where each block's end */
    whole block_count;
    _Atomic whole *next;
} Convolution;

typedef struct {
    Rows target;
    whole terms;
    const Rows *const *sources;
    const whole *const *rows; /* of each term: the source's row for each of the target's, or -1 */
    const void *const *factors;
    _Atomic whole *next;
} Combination;

typedef struct {
    Rows source, target;
    whole offsets, stride[2], padding[2];
    const whole *offset; /* down and across, of each */
    const void *shares;  /* of each offset and each row of the target */
    _Atomic whole *next;
} Pooling;

typedef struct {
    Rows rows;
    const whole *index;  /* of each region: its image, or -1 */
    void *images;
    whole strides[4];    /* image, channel, line, position */
    const whole *origin; /* top and left of each image; may be absent */
    _Atomic whole *next;
} Pictures;

typedef struct {
    whole first, last, at; /* rows of the source, and where the first of them lies in the packed block */
} Run;

typedef struct { /* one position of a block */
    whole y, x, place, first, last; /* its rows */
    whole inputs, run_count;        /* what it looks at: */
    Run *runs;
    int32_t *places; /* where the weights of each input are in a row of W */
    int32_t *into;   /* where each of the block's regions stands among its own, -1 where it does not reach it */
} Spot;

enum {
    HIGH = 6,  /* outputs at once */
    FEW = 8,   /* panels up to which weights are read where they are */
    SOME = 16, /* positions that are handed out at once */
};

static inline whole least(whole a, whole b) { return a < b ? a : b; }
static inline whole within(whole a, whole size) { return a < 0 ? 0 : least(a, size); }

static inline whole region_count(const Rows *r, whole place) {
    return r->region_starts[place + 1] - r->region_starts[place];
}

/* Where each of `wanted` (ascending) stands among the regions of a position; -1 where it does not reach it. */
static void find(const Rows *r, whole place, const whole *wanted, whole count, int32_t *found) {
    const whole *have = r->regions + r->region_starts[place];
    whole size = region_count(r, place), at = 0;
    for (whole i = 0; i < count; i++) {
        while (at < size && have[at] < wanted[i]) at++;
        found[i] = at < size && have[at] == wanted[i] ? (int32_t)at : -1;
    }
}

/* Where features of a mask (height, width, channels) have their rows: each row's index into the mask laid out so, its
 * channel, and its index into (channels, height, width). Channels that do not lie beside each other are first laid so, for
 * some positions of a line at a time. */
whole lay(const uint8_t *mask, const whole *shape, const whole *strides, whole *flat, whole *channel, whole *place) {
    whole positions = shape[0] * shape[1], channels = shape[2], row = 0;
    uint8_t *beside = strides[2] == 1 ? NULL : malloc((size_t)(SOME * channels));
    if (strides[2] != 1 && !beside) return -1;
    for (whole y = 0; y < shape[0]; y++)
        for (whole x = 0; x < shape[1]; x += SOME) {
            const uint8_t *here = mask + y * strides[0] + x * strides[1];
            whole some = least(shape[1] - x, SOME), step = strides[1];
            if (beside) {
                for (whole c = 0; c < channels; c++)
                    for (whole i = 0; i < some; i++) beside[i * channels + c] = here[c * strides[2] + i * strides[1]];
                here = beside, step = channels;
            }
            for (whole i = 0, at = y * shape[1] + x; i < some; i++, at++, here += step)
                for (whole c = 0; c < channels; c++)
                    if (here[c]) {
                        flat[row] = at * channels + c;
                        channel[row] = c;
                        place[row++] = c * positions + at;
                    }
        }
    free(beside);
    return 0;
}

/* Square blocks of positions, and the regions [low, high) that touch each of them, one after another. Gives the number of
 * blocks: of those that are touched, or of all. */
whole touch(const whole *low, const whole *high, whole regions, const whole *size, whole side, whole all, whole *boxes,
            whole *columns, whole *ends) {
    whole blocks = 0, end = 0;
    whole *level = malloc(sizeof(whole) * (size_t)(regions + 1)); /* regions that touch a line of blocks */
    if (!level) return -1;
    for (whole top = 0; top < size[0]; top += side) {
        whole count = 0;
        for (whole i = 0; i < regions; i++)
            if (low[2 * i] < top + side && high[2 * i] > top) level[count++] = i;
        for (whole left = 0; left < size[1]; left += side) {
            whole begin = end;
            for (whole i = 0; i < count; i++)
                if (low[2 * level[i] + 1] < left + side && high[2 * level[i] + 1] > left) columns[end++] = level[i];
            if (end == begin && !all) continue;
            whole *box = boxes + 4 * blocks;
            box[0] = top, box[1] = left, box[2] = least(top + side, size[0]), box[3] = least(left + side, size[1]);
            ends[blocks++] = end;
        }
    }
    free(level);
    return blocks;
}

/* Are these the first `count` regions in order? */
static int in_order(const int32_t *found, whole count) {
    for (whole i = 0; i < count; i++)
        if (found[i] != i) return 0;
    return 1;
}

/* At least so much room; what was there is lost. */
static int grow(void *room, whole *have, whole want, size_t each) {
    void **place = room;
    if (want <= *have) return 0;
    free(*place);
    *place = malloc((size_t)want * each);
    *have = *place ? want : 0;
    return *place == NULL;
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

#define LANES ((whole)(32 / sizeof(REAL)))
#define WIDE ((whole)(64 / sizeof(REAL))) /* regions at once: a panel */

typedef REAL NAME(vector) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));

/* ------------------------------------------------------------------ convolve */

/* sums[HIGH][WIDE] for the first one or two vectors of a panel. Weights lie packed, HIGH of them for each row of the panel,
 * or (rows, places) are read where they are. Of one vector every other row has sums of its own: each would else wait for
 * the one before it. */
static inline __attribute__((always_inline)) void NAME(multiply)(int vectors, const REAL *packed,
                                                                const REAL *const *rows, const int32_t *places,
                                                                const REAL *panel, const Run *runs, whole count,
                                                                REAL *sums) {
    NAME(vector) s[HIGH][2];
    for (int i = 0; i < HIGH; i++) s[i][0] = s[i][1] = (NAME(vector)){0};
    for (whole r = 0; r < count; r++) {
        const REAL *b = panel + runs[r].at * vectors * LANES;
        whole k = runs[r].last - runs[r].first;
        for (; vectors == 1 && k > 1; k -= 2, b += 2 * LANES) {
            NAME(vector) left = *(const NAME(vector) *)b, right = *(const NAME(vector) *)(b + LANES);
            for (int i = 0; i < HIGH; i++) {
                s[i][0] += (rows ? rows[i][places[0]] : packed[i]) * left;
                s[i][1] += (rows ? rows[i][places[1]] : packed[HIGH + i]) * right;
            }
            if (rows) places += 2;
            else packed += 2 * HIGH;
        }
        for (; k > 0; k--, b += vectors * LANES) {
            NAME(vector) left = *(const NAME(vector) *)b, right = left;
            if (vectors == 2) right = *(const NAME(vector) *)(b + LANES);
            for (int i = 0; i < HIGH; i++) {
                REAL weight = rows ? rows[i][*places] : packed[i];
                s[i][0] += weight * left;
                if (vectors == 2) s[i][1] += weight * right;
            }
            if (rows) places++;
            else packed += HIGH;
        }
    }
    for (int i = 0; i < HIGH; i++, sums += WIDE) {
        if (vectors == 1) s[i][0] += s[i][1];
        *(NAME(vector) *)sums = s[i][0];
        *(NAME(vector) *)(sums + LANES) = s[i][1];
    }
}

typedef struct {
    REAL *panels, *weights, *factors;
    int32_t *places, *found;
    Run *runs;
    Spot *spots;
    whole *lines; /* where each line of the source begins in the packed block */
    whole panels_size, weights_size, factors_size, places_size, found_size, runs_size, spots_size;
} NAME(Room);

/* All rows of one position of the source, for the block's regions, panel by panel: panels[p][at + row][one or two vectors].
 * The input of a ratio comes first, as if it were a region. */
static void NAME(pack_source)(const Convolution *w, whole place, whole at, const whole *regions, whole count, whole size,
                              NAME(Room) *room) {
    const Rows *source = &w->source;
    whole rows = source->starts[place + 1] - source->starts[place], have = region_count(source, place);
    if (!rows) return;
    whole lead = w->input != NULL;
    find(source, place, regions, count - lead, room->found + lead);
    const REAL *numbers = (const REAL *)source->numbers + source->offsets[place];
    const REAL *input = lead ? (const REAL *)w->input + source->starts[place] : NULL;
    for (whole p = 0; p * WIDE < count; p++, input = NULL) {
        const int32_t *found = room->found + p * WIDE;
        const REAL *from = numbers;
        whole some = least(count - p * WIDE, WIDE), wide = some > LANES ? WIDE : LANES, copied = 0;
        REAL *to = room->panels + p * size * WIDE + at * wide;
        int32_t lanes[WIDE], columns[WIDE]; /* what is copied where */
        for (whole i = input != NULL; i < some; i++)
            if (found[i] >= 0) lanes[copied] = (int32_t)i, columns[copied++] = found[i];
        if (copied == WIDE && columns[WIDE - 1] - columns[0] == WIDE - 1) {
            for (whole r = 0; r < rows; r++, from += have, to += WIDE) memcpy(to, from + columns[0], sizeof(REAL) * WIDE);
            continue;
        }
        for (whole r = 0; r < rows; r++, from += have, to += wide) {
            memset(to, 0, sizeof(REAL) * LANES);
            if (wide > LANES) memset(to + LANES, 0, sizeof(REAL) * LANES);
            if (input) to[0] = input[r];
            for (whole i = 0; i < copied; i++) to[lanes[i]] = from[columns[i]];
        }
    }
}

/* Weights of all terms and their factors, HIGH outputs beside each other for each input in reach. */
static void NAME(pack_weights)(const Convolution *w, const Spot *spot, REAL *weights) {
    whole length = w->kernel[0] * w->kernel[1] * w->source.channels, inputs = spot->inputs;
    const int32_t *places = spot->places;
    for (whole o = spot->first; (o - spot->first) % HIGH || o < spot->last; o++) {
        REAL *to = weights + (o - spot->first) / HIGH * inputs * HIGH + (o - spot->first) % HIGH;
        if (o >= spot->last) {
            for (whole k = 0; k < inputs; k++) to[k * HIGH] = 0;
            continue;
        }
        for (whole t = 0; t < w->terms; t++) {
            const REAL *row = (const REAL *)w->weights[t] + w->target.channel[o] * length;
            const REAL *before = w->before[t], *after = w->after[t];
            REAL factor = after && w->terms > 1 ? after[o] : 1; /* of one term it comes after the sums */
            if (!before && w->terms == 1) {
                for (whole k = 0; k < inputs; k++) to[k * HIGH] = row[places[k]];
                continue;
            }
            for (whole r = 0, k = 0; r < spot->run_count; r++)
                for (whole i = spot->runs[r].first; i < spot->runs[r].last; i++, k++) {
                    REAL part = row[places[k]] * (before ? before[i] : 1) * factor;
                    to[k * HIGH] = t ? to[k * HIGH] + part : part;
                }
        }
    }
}

/* What one position looks at: runs of the source's rows, and where their weights are in a row of W. */
static void NAME(look)(const Convolution *w, Spot *spot, whole top, whole left, const whole *lines) {
    whole wide = w->kernel[1], width = w->source.width;
    whole step = w->dilation[1] == 1 ? wide : 1; /* neighbours under a line of the kernel are one run */
    spot->inputs = spot->run_count = 0;
    for (whole dy = 0; dy < w->kernel[0]; dy++) {
        whole line = spot->y * w->stride[0] - w->padding[0] + dy * w->dilation[0];
        if (line < 0 || line >= w->source.height) continue;
        const whole *starts = w->source.starts + line * width;
        for (whole dx = 0; dx < wide; dx += step) {
            whole place = spot->x * w->stride[1] - w->padding[1] + dx * w->dilation[1];
            whole low = within(place, width), high = within(place + step, width);
            Run run = {starts[low], starts[high], lines[line - top] + starts[low] - starts[left]};
            if (run.first == run.last) continue;
            for (whole at = low; at < high; at++) {
                whole begin = (dy * wide + dx + at - place) * w->source.channels;
                for (whole row = starts[at]; row < starts[at + 1]; row++)
                    spot->places[spot->inputs++] = (int32_t)(begin + w->source.channel[row]);
            }
            spot->runs[spot->run_count++] = run;
        }
    }
}

/* Up to HIGH outputs of one position, from row o on, for one panel of the block's regions. */
static void NAME(outputs)(const Convolution *w, const Spot *spot, whole o, const REAL *packed, const REAL *panel, whole p,
                          whole count, REAL *factors) {
    const Rows *target = &w->target;
    whole most = least(spot->last - o, HIGH), some = least(count - p * WIDE, WIDE), have = region_count(target, spot->place);
    const int32_t *put = spot->into + p * WIDE;
    int together = put[0] >= 0, any = w->input && p == 0;
    for (whole i = 0; i < some; i++) together = together && put[i] == put[0] + i, any = any || put[i] >= 0;
    if (!any) return;
    REAL sums[HIGH * WIDE];
    if (packed) {
        if (some > LANES) NAME(multiply)(2, packed, NULL, NULL, panel, spot->runs, spot->run_count, sums);
        else NAME(multiply)(1, packed, NULL, NULL, panel, spot->runs, spot->run_count, sums);
    } else {
        const REAL *rows[HIGH];
        whole length = w->kernel[0] * w->kernel[1] * w->source.channels;
        for (whole i = 0; i < HIGH; i++)
            rows[i] = (const REAL *)w->weights[0] + target->channel[i < most ? o + i : o] * length;
        if (some > LANES) NAME(multiply)(2, NULL, rows, spot->places, panel, spot->runs, spot->run_count, sums);
        else NAME(multiply)(1, NULL, rows, spot->places, panel, spot->runs, spot->run_count, sums);
    }
    if (w->input && p == 0)
        for (whole i = 0; i < most; i++) {
            REAL total = sums[i * WIDE] + ((const REAL *)w->bias)[o + i], floor = ((const REAL *)w->least)[o + i];
            factors[i] = ((const REAL *)w->counted)[o + i] / (total < floor ? floor : total);
        }
    const REAL *after = w->terms == 1 ? w->after[0] : NULL;
    REAL *to = (REAL *)target->numbers + target->offsets[spot->place] + (o - spot->first) * have;
    for (whole i = 0; i < most; i++, to += have) {
        REAL factor = w->input ? factors[i] : after ? after[o + i] : 1;
        const REAL *from = sums + i * WIDE;
        if (together)
            for (whole j = 0; j < some; j++) to[put[0] + j] = factor * from[j];
        else
            for (whole j = 0; j < some; j++)
                if (put[j] >= 0) to[put[j]] = factor * from[j];
    }
}

/* All outputs of one position for many regions: weights are looked up once, and panel after panel takes all of them. */
static int NAME(many)(const Convolution *w, const Spot *spot, whole count, whole size, NAME(Room) *room) {
    whole rows = (spot->last - spot->first + HIGH - 1) / HIGH * HIGH;
    if (grow(&room->weights, &room->weights_size, rows * (spot->inputs + 1), sizeof(REAL)) ||
        grow(&room->factors, &room->factors_size, rows, sizeof(REAL)))
        return 1;
    NAME(pack_weights)(w, spot, room->weights);
    for (whole p = 0; p * WIDE < count; p++)
        for (whole o = 0; spot->first + o < spot->last; o += HIGH)
            NAME(outputs)(w, spot, spot->first + o, room->weights + o * spot->inputs, room->panels + p * size * WIDE, p,
                          count, room->factors + o);
    return 0;
}

/* All outputs of all positions for few regions, some of each position in turn: what they look up lies near. */
static void NAME(few)(const Convolution *w, const Spot *spots, whole number, whole count, whole size, NAME(Room) *room) {
    REAL factors[HIGH];
    int left = 1;
    for (whole o = 0; left; o += HIGH) {
        left = 0;
        for (const Spot *spot = spots; spot < spots + number; spot++) {
            if (spot->first + o >= spot->last) continue;
            left = 1;
            for (whole p = 0; p * WIDE < count; p++)
                NAME(outputs)(w, spot, spot->first + o, NULL, room->panels + p * size * WIDE, p, count, factors);
        }
    }
}

/* The positions of a block that have outputs, and what each of them looks at. */
static int NAME(survey)(const Convolution *w, const whole *box, whole top, whole left, const whole *regions, whole count,
                        whole size, NAME(Room) *room) {
    const Rows *target = &w->target;
    whole most = (box[2] - box[0]) * (box[3] - box[1]), lead = w->input != NULL, found = 0;
    whole columns = (count + WIDE - 1) / WIDE * WIDE, kernel = w->kernel[0] * w->kernel[1];
    if (grow(&room->spots, &room->spots_size, most, sizeof(Spot)) ||
        grow(&room->runs, &room->runs_size, most * kernel, sizeof(Run)) ||
        grow(&room->places, &room->places_size, most * size, sizeof(int32_t)) ||
        grow(&room->found, &room->found_size, (most + 1) * columns, sizeof(int32_t)))
        return -1;
    for (whole y = box[0]; y < box[2]; y++)
        for (whole x = box[1]; x < box[3]; x++) {
            whole place = y * target->width + x, have = region_count(target, place);
            const whole *own = target->regions + target->region_starts[place];
            Spot spot = {.y = y, .x = x, .place = place, .first = target->starts[place], .last = target->starts[place + 1],
                         .runs = room->runs + found * kernel, .places = room->places + found * size,
                         .into = room->found + (found + 1) * columns};
            if (spot.first == spot.last || !have) continue;
            NAME(look)(w, &spot, top, left, room->lines);
            if (lead) spot.into[0] = -1;
            for (whole i = lead, at = 0; i < count; i++)
                spot.into[i] = at < have && own[at] == regions[i - lead] ? (int32_t)at++ : -1;
            room->spots[found++] = spot;
        }
    return (int)found;
}

static int NAME(block)(const Convolution *w, whole number, NAME(Room) *room) {
    const whole *box = w->blocks + 4 * number, begin = number ? w->block_ends[number - 1] : 0;
    whole count = w->block_ends[number] - begin + (w->input != NULL), low[2], high[2], size = 0;
    for (int axis = 0; axis < 2; axis++) { /* what the block looks at */
        whole room_there = axis ? w->source.width : w->source.height;
        whole last = (box[2 + axis] - 1) * w->stride[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1;
        low[axis] = within(box[axis] * w->stride[axis] - w->padding[axis], room_there);
        high[axis] = within(last - w->padding[axis], room_there);
    }
    for (whole y = low[0]; y < high[0]; y++) {
        const whole *starts = w->source.starts + y * w->source.width;
        room->lines[y - low[0]] = size;
        size += starts[high[1]] - starts[low[1]];
    }
    whole panels = (count + WIDE - 1) / WIDE;
    const whole *regions = w->block_regions + begin;
    if (grow(&room->panels, &room->panels_size, panels * size * WIDE, sizeof(REAL))) return 1;
    int spots = NAME(survey)(w, box, low[0], low[1], regions, count, size, room);
    if (spots <= 0) return spots < 0;
    for (whole y = low[0], at = 0; y < high[0]; y++)
        for (whole place = y * w->source.width + low[1]; place < y * w->source.width + high[1]; place++) {
            NAME(pack_source)(w, place, at, regions, count, size, room);
            at += w->source.starts[place + 1] - w->source.starts[place];
        }
    if (panels <= FEW && w->terms == 1 && !w->before[0]) {
        NAME(few)(w, room->spots, spots, count, size, room);
        return 0;
    }
    for (whole i = 0; i < spots; i++)
        if (NAME(many)(w, room->spots + i, count, size, room)) return 1;
    return 0;
}

int NAME(convolve)(const Convolution *w) {
    NAME(Room) room = {0};
    room.lines = malloc(sizeof(whole) * (size_t)(w->source.height + 1));
    int failed = !room.lines;
    while (!failed) {
        whole number = atomic_fetch_add(w->next, 1);
        if (number >= w->block_count) break;
        failed = NAME(block)(w, number, &room);
    }
    free(room.panels), free(room.weights), free(room.factors), free(room.places), free(room.found), free(room.runs);
    free(room.spots), free(room.lines);
    return failed;
}

/* ------------------------------------------------------------------ combine */

/* (+)= factor * from, at the regions that the source has. */
static inline void NAME(add)(REAL *to, const REAL *from, const int32_t *found, whole count, REAL factor, int more) {
    if (!found && more)
        for (whole i = 0; i < count; i++) to[i] += factor * from[i];
    else if (!found)
        for (whole i = 0; i < count; i++) to[i] = factor * from[i];
    else
        for (whole i = 0; i < count; i++) {
            REAL part = found[i] >= 0 ? factor * from[found[i]] : 0;
            to[i] = more ? to[i] + part : part;
        }
}

int NAME(combine)(const Combination *w) {
    const Rows *target = &w->target;
    whole places = target->height * target->width, size = 0, *last = malloc(sizeof(whole) * (size_t)w->terms);
    int32_t *found = NULL;
    int *same = malloc(sizeof(int) * (size_t)w->terms), failed = !last || !same;
    for (whole begin = 0; !failed;) {
        begin = atomic_fetch_add(w->next, SOME);
        if (begin >= places) break;
        for (whole place = begin; place < least(begin + SOME, places) && !failed; place++) {
            whole count = region_count(target, place);
            const whole *own = target->regions + target->region_starts[place];
            failed = grow(&found, &size, w->terms * count, sizeof(int32_t));
            for (whole t = 0; t < w->terms; t++) last[t] = -1;
            REAL *to = (REAL *)target->numbers + target->offsets[place];
            for (whole row = target->starts[place]; !failed && row < target->starts[place + 1]; row++, to += count) {
                int more = 0;
                for (whole t = 0; t < w->terms; t++) {
                    const Rows *source = w->sources[t];
                    whole from = w->rows[t][row], there = last[t];
                    if (from < 0) continue;
                    /* rows of one position mostly come from one position too */
                    if (there < 0 || from < source->starts[there] || from >= source->starts[there + 1]) {
                        whole low = 0, high = source->height * source->width;
                        while (high - low > 1) {
                            whole middle = (low + high) / 2;
                            if (source->starts[middle] <= from) low = middle;
                            else high = middle;
                        }
                        last[t] = there = low;
                        find(source, there, own, count, found + t * count);
                        same[t] = region_count(source, there) == count && in_order(found + t * count, count);
                    }
                    const REAL *numbers = (const REAL *)source->numbers + source->offsets[there];
                    NAME(add)(to, numbers + (from - source->starts[there]) * region_count(source, there),
                              same[t] ? NULL : found + t * count, count,
                              w->factors[t] ? ((const REAL *)w->factors[t])[row] : 1, more);
                    more = 1;
                }
                if (!more) memset(to, 0, sizeof(REAL) * (size_t)count);
            }
        }
    }
    free(found), free(last), free(same);
    return failed;
}

/* ------------------------------------------------------------------ pool */

int NAME(pool)(const Pooling *w) {
    const Rows *target = &w->target, *source = &w->source;
    whole places = target->height * target->width, rows = target->starts[places], size = 0;
    int32_t *found = NULL;
    int failed = 0;
    while (!failed) {
        whole begin = atomic_fetch_add(w->next, SOME);
        if (begin >= places) break;
        for (whole place = begin; place < least(begin + SOME, places) && !failed; place++) {
            whole first = target->starts[place], last = target->starts[place + 1], count = region_count(target, place);
            if (first == last || (failed = grow(&found, &size, count, sizeof(int32_t)))) continue;
            REAL *out = (REAL *)target->numbers + target->offsets[place];
            memset(out, 0, sizeof(REAL) * (size_t)((last - first) * count));
            for (whole o = 0; o < w->offsets; o++) {
                whole y = place / target->width * w->stride[0] - w->padding[0] + w->offset[2 * o];
                whole x = place % target->width * w->stride[1] - w->padding[1] + w->offset[2 * o + 1];
                if (y < 0 || y >= source->height || x < 0 || x >= source->width) continue;
                whole there = y * source->width + x, from = source->starts[there], end = source->starts[there + 1];
                whole have = region_count(source, there);
                const REAL *share = (const REAL *)w->shares + o * rows;
                const REAL *numbers = (const REAL *)source->numbers + source->offsets[there];
                find(source, there, target->regions + target->region_starts[place], count, found);
                int same = have == count && in_order(found, count);
                for (whole row = first, at = from; row < last; row++) {
                    if (share[row] == 0) continue;
                    while (at < end && source->channel[at] < target->channel[row]) at++;
                    if (at == end || source->channel[at] != target->channel[row]) continue;
                    NAME(add)(out + (row - first) * count, numbers + (at - from) * have, same ? NULL : found, count,
                              share[row], 1);
                }
            }
        }
    }
    free(found);
    return failed;
}

/* ------------------------------------------------------------------ collect and spread */

static int NAME(pictures)(const Pictures *w, int spread) {
    const Rows *rows = &w->rows;
    whole places = rows->height * rows->width, size = 0;
    REAL **at = NULL;
    int failed = 0;
    while (!failed) {
        whole begin = atomic_fetch_add(w->next, SOME);
        if (begin >= places) break;
        for (whole place = begin; place < least(begin + SOME, places) && !failed; place++) {
            whole count = region_count(rows, place), y = place / rows->width, x = place % rows->width;
            whole first = rows->starts[place], last = rows->starts[place + 1];
            const whole *regions = rows->regions + rows->region_starts[place];
            REAL *numbers = (REAL *)rows->numbers + rows->offsets[place];
            if (first == last || (failed = grow(&at, &size, count, sizeof *at))) continue;
            for (whole i = 0; i < count; i++) { /* where this position begins in each region's image */
                whole image = w->index[regions[i]];
                whole top = image >= 0 && w->origin ? w->origin[2 * image] : 0;
                whole left = image >= 0 && w->origin ? w->origin[2 * image + 1] : 0;
                at[i] = image < 0 ? NULL
                                  : (REAL *)w->images + image * w->strides[0] + (y - top) * w->strides[2] +
                                        (x - left) * w->strides[3];
            }
            for (whole row = first; row < last; row++, numbers += count) {
                whole channel = rows->channel[row] * w->strides[1];
                if (spread) {
                    for (whole i = 0; i < count; i++)
                        if (at[i]) at[i][channel] = numbers[i];
                } else {
                    for (whole i = 0; i < count; i++)
                        if (at[i]) numbers[i] = at[i][channel];
                }
            }
        }
    }
    free(at);
    return failed;
}

int NAME(collect)(const Pictures *w) { return NAME(pictures)(w, 0); }
int NAME(spread)(const Pictures *w) { return NAME(pictures)(w, 1); }

#undef LANES
#undef WIDE
#endif

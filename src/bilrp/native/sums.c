/* Column sums for the checksum of weights (`trace.checksum`, which has the numpy version), in one pass over memory.
 *
 * A row has COLUMNS words of 64 bits, a group ROWS_PER_GROUP rows. Overflow wraps around, as in numpy.
 *
 *     sums[c] = sum over groups g of  factor[g] * mix(sum over the rows of g of  word[row, c])
 *     mix(s) = s xor (s >> MIX_SHIFT_BITS)
 *
 * Thread-safe: there is no state.
 */
#include <stdint.h>

enum { COLUMNS = 1021, ROWS_PER_GROUP = 7, MIX_SHIFT_BITS = 29 };

typedef uint64_t unaligned_u64 __attribute__((aligned(1), may_alias)); /* weights may start at any byte */

void sum_columns(const unaligned_u64 *group, const uint64_t *factor, uint64_t *restrict sums, int64_t groups) {
    for (int c = 0; c < COLUMNS; c++) sums[c] = 0;
    for (int64_t g = 0; g < groups; g++, group += ROWS_PER_GROUP * COLUMNS)
        for (int c = 0; c < COLUMNS; c++) {
            uint64_t sum = 0;
            for (int row = 0; row < ROWS_PER_GROUP; row++) sum += group[row * COLUMNS + c];
            sums[c] += factor[g] * (sum ^ sum >> MIX_SHIFT_BITS);
        }
}

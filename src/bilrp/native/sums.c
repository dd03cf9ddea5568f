/* Sums over weights in native code: what `trace.checksum` does in numpy, in one walk through memory.
 *
 * Words of 64 bits lie in rows of COLUMNS, and ROWS_PER_GROUP rows are a group. Overflow wraps around, as it does in
 * numpy.
 *
 *     sums[c] = sum over groups g of  factor[g] * mixed(sum over the group's rows of  word[row, c])
 *     mixed(s) = s xor (s >> MIX_SHIFT_BITS)
 *
 * It has no state, so that any number of threads can make the call.
 */
#include <stdint.h>

enum { COLUMNS = 1021, ROWS_PER_GROUP = 7, MIX_SHIFT_BITS = 29 };

typedef uint64_t unaligned_u64 __attribute__((aligned(1), may_alias)); /* a view of weights may begin at any byte */

void sum_columns(const unaligned_u64 *group, const uint64_t *factor, uint64_t *restrict sums, int64_t groups) {
    for (int c = 0; c < COLUMNS; c++) sums[c] = 0;
    for (int64_t g = 0; g < groups; g++, group += ROWS_PER_GROUP * COLUMNS)
        for (int c = 0; c < COLUMNS; c++) {
            uint64_t sum = 0;
            for (int row = 0; row < ROWS_PER_GROUP; row++) sum += group[row * COLUMNS + c];
            sums[c] += factor[g] * (sum ^ sum >> MIX_SHIFT_BITS);
        }
}

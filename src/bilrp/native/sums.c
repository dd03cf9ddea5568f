/* Sums over weights in native code: what `trace.sums` does in numpy, in one walk through memory.
 *
 * Words of 64 bits lie in rows of COLUMNS, and TOGETHER rows are a group. Overflow wraps around, as it does in numpy.
 *
 *     sums[c] = sum over groups g of  factor[g] * mixed(sum over the group's rows of  word[row, c])
 *     mixed(s) = s xor (s >> SHIFT)
 *
 * It has no state, so that any number of threads can make the call.
 */
#include <stdint.h>

enum { COLUMNS = 1021, TOGETHER = 7, SHIFT = 29 };

typedef uint64_t word __attribute__((aligned(1), may_alias)); /* a view of weights may begin at any byte */

void column_sums(const word *group, const uint64_t *factor, uint64_t *restrict sums, int64_t groups) {
    for (int c = 0; c < COLUMNS; c++) sums[c] = 0;
    for (int64_t g = 0; g < groups; g++, group += TOGETHER * COLUMNS)
        for (int c = 0; c < COLUMNS; c++) {
            uint64_t sum = 0;
            for (int row = 0; row < TOGETHER; row++) sum += group[row * COLUMNS + c];
            sums[c] += factor[g] * (sum ^ sum >> SHIFT);
        }
}

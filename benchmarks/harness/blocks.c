/* Look up random digests in the exported blocks of one layer of a filter.
 *
 *   blocks BLOCKS HASHES PROBES SEED FILE     print how many digests have all of their bits set
 *
 * A digest is 64 bytes: 6 choose the block, as a fraction of the layer, 2 are spare, and each further pair chooses a byte
 * of the block and a bit of that byte, as in scrapy_bloom/lua/filter.lua.
 */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, DIGEST = 64 };

/* splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t state;

static uint64_t next(void) {
    uint64_t word = state += UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
    return word ^ word >> 31;
}

static int holds(const unsigned char *bits, uint64_t blocks, unsigned hashes) {
    uint64_t place = next() >> 16;
    const unsigned char *block = bits + (uint64_t)((unsigned __int128)place * blocks >> 48) * BLOCK;
    uint64_t word = 0;
    for (unsigned i = 0; i < hashes; i++, word >>= 16) {
        if (i % 4 == 0) word = next();
        if (!(block[word & 0xff] >> (word >> 8 & 7) & 1)) return 0;
    }
    return 1;
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    uint64_t blocks = strtoull(arguments[1], NULL, 10), probes = strtoull(arguments[3], NULL, 10), found = 0;
    unsigned hashes = (unsigned)strtoul(arguments[2], NULL, 10);
    state = strtoull(arguments[4], NULL, 10);
    unsigned char *bits = malloc(blocks * BLOCK);
    FILE *file = fopen(arguments[5], "rb");
    if (!bits || !file || fread(bits, BLOCK, blocks, file) != blocks || fgetc(file) != EOF) return 1;
    for (uint64_t i = 0; i < probes; i++) found += (uint64_t)holds(bits, blocks, hashes);
    printf("%" PRIu64 "\n", found);
    return 0;
}

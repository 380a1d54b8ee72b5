/* Look up numbers in the exported shards of one layer of a filter, a thousand times faster than over a connection.
 *
 *   probe locate HASHES SHARDS SHARD_BITS KEY LAYER FIRST COUNT           print the shard and the positions of each item
 *   probe count  HASHES SHARDS SHARD_BITS KEY LAYER FIRST COUNT FILE...   print how many items have all their bits set
 *
 * An item is a number as 8 bytes, the lowest first. Positions are those of scrapy_bloom/filter/hashing.py. A file holds
 * one shard: a header of 8 bytes, then its bits, the highest of each byte first.
 */

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BITS = 64 };

static uint64_t rotate(uint64_t word, int by) { return word << by | word >> (64 - by); }

static uint64_t mix(uint64_t word) {
    word = (word ^ word >> 33) * UINT64_C(0xff51afd7ed558ccd);
    word = (word ^ word >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return word ^ word >> 33;
}

/* MurmurHash3 x64 128 of 8 bytes: no whole block, and a tail that fills one of its two words. */
static void digest(uint64_t item, uint32_t seed, uint64_t *first, uint64_t *second) {
    uint64_t word = rotate(item * UINT64_C(0x87c37b91114253d5), 31) * UINT64_C(0x4cf5ad432745937f);
    uint64_t one = seed ^ word ^ 8, two = seed ^ 8;
    one += two;
    two += one;
    one = mix(one);
    two = mix(two);
    *first = one + two;
    *second = two + *first;
}

struct layer {
    uint64_t hashes, shards, shard_bits;
    uint32_t seeds[2];
};

/* Three words below `shard_bits` determine the positions, a fourth one the shard. */
struct place {
    uint64_t shard, x, y, z;
};

static struct place locate(const struct layer *layer, uint64_t item) {
    struct place place;
    uint64_t word;
    digest(item, layer->seeds[0], &place.x, &place.y);
    digest(item, layer->seeds[1], &place.z, &word);
    place.x %= layer->shard_bits;
    place.y %= layer->shard_bits;
    place.z %= layer->shard_bits;
    place.shard = (uint64_t)((unsigned __int128)word * layer->shards >> 64);
    return place;
}

static uint64_t sum(uint64_t one, uint64_t other, uint64_t modulus) {
    uint64_t both = one + other;
    return both < modulus ? both : both - modulus;
}

static void step(struct place *place, uint64_t shard_bits) {
    place->x = sum(place->x, place->y, shard_bits);
    place->y = sum(place->y, place->z, shard_bits);
    place->z = sum(place->z, 1, shard_bits);
}

static int is_set(const struct layer *layer, unsigned char **shards, struct place place) {
    const unsigned char *bytes = shards[place.shard];
    for (uint64_t hash = 0; hash < layer->hashes; hash++) {
        uint64_t bit = place.x + HEADER_BITS;
        if (!(bytes[bit >> 3] >> (7 - (bit & 7)) & 1)) return 0;
        step(&place, layer->shard_bits);
    }
    return 1;
}

static unsigned char *map(const char *path, uint64_t shard_bits) {
    struct stat found;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &found) != 0 || (uint64_t)found.st_size < (HEADER_BITS + shard_bits) / 8) {
        fprintf(stderr, "%s: this is not a shard of %" PRIu64 " bits\n", path, shard_bits);
        exit(2);
    }
    void *bytes = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (bytes == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(file);
    return bytes;
}

int main(int number, char **arguments) {
    if (number < 9) {
        fprintf(stderr, "probe: 8 arguments or more, as the head of probe.c says\n");
        return 2;
    }
    uint64_t values[7];
    for (int index = 0; index < 7; index++) values[index] = strtoull(arguments[index + 2], NULL, 10);
    uint64_t key = values[3], index = values[4], first = values[5], count = values[6];
    struct layer layer = {values[0], values[1], values[2], {(uint32_t)(2 * index + key), (uint32_t)(2 * index + 1 + (key >> 32))}};
    if (strcmp(arguments[1], "locate") == 0) {
        for (uint64_t item = first; item < first + count; item++) {
            struct place place = locate(&layer, item);
            printf("%" PRIu64, place.shard);
            for (uint64_t hash = 0; hash < layer.hashes; hash++, step(&place, layer.shard_bits)) printf(" %" PRIu64, place.x);
            printf("\n");
        }
        return 0;
    }
    if ((uint64_t)(number - 9) != layer.shards) {
        fprintf(stderr, "probe: %d files, %" PRIu64 " shards\n", number - 9, layer.shards);
        return 2;
    }
    unsigned char **shards = malloc(layer.shards * sizeof *shards);
    for (uint64_t shard = 0; shard < layer.shards; shard++) shards[shard] = map(arguments[9 + shard], layer.shard_bits);
    uint64_t present = 0;
    for (uint64_t item = first; item < first + count; item++) present += (uint64_t)is_set(&layer, shards, locate(&layer, item));
    printf("%" PRIu64 "\n", present);
    return 0;
}
